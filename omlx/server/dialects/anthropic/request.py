"""Anthropic's dialect: a JSON body to a `GenerationRequest`.

Unknown fields and beta headers are ignored. Tools of Anthropic's own types are left out, with a
warning, but for MCP servers and web search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from omlx.errors import BadRequest, Reason
from omlx.server.dialects.anthropic import blocks
from omlx.server.dialects.anthropic.blocks import WEB_SEARCH, AnthropicMessage, Block
from omlx.server.dialects.anthropic.encoder import MessageEncoder, tool_id
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.content import ContentReader
from omlx.server.request.dialect import Encoder, Exchange, Wire, named_event
from omlx.server.request.fields import Body, Listed, Stops, Templated, Text, stops
from omlx.server.request.generation_request import (
    DialectDefaults,
    GenerationRequest,
    ServerTools,
)
from omlx.server.request.stream import GenerationStream
from omlx.server.request.structured_output import structured_output
from omlx.server.request.tooling import skipped
from omlx.text.grammar import StructuredOutput
from omlx.text.tools import ToolUse
from omlx.tools.tool import MCP, WEB, Tool, Toolset

NOT_THINKING: Final = {"enable_thinking": False}
"""Template variable of a request without `thinking`."""
WIRE: Final = Wire(named_event, idle=named_event({"type": "ping"}))

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {"thread": ()}
"""Unsupported fields, each with the values that request nothing."""


TOOLSET: Final = "mcp_toolset"
_SEARCH: Final = "web_search_"
"""Beginning of the types of web search."""
_FILTERS: Final = ("allowed_domains", "blocked_domains", "user_location")


class ToolConfig(Body):
    enabled: bool | None = None


class ServerConfig(Body):
    enabled: bool | None = None
    allowed_tools: Listed[str] | None = None


class McpServerDefinition(Body):
    type: Literal["url"] = "url"
    name: Text
    url: Text | None = None
    authorization_token: str | None = None
    tool_configuration: ServerConfig | None = None

    def allows(self, tool: Tool) -> bool:
        """Return whether a tool may be called, without a toolset."""
        config = self.tool_configuration
        if config is None:
            return True
        named = config.allowed_tools is None or tool.name in config.allowed_tools
        return config.enabled is not False and named


class ServerToolFields(Body):
    """Fields of server tools; `type` decides the fields present."""

    type: str | None = None
    mcp_server_name: Text | None = None
    default_config: ToolConfig | None = None
    configs: dict[str, ToolConfig] | None = None
    max_uses: int | None = None

    @property
    def run_here(self) -> bool:
        return self.type == TOOLSET or str(self.type).startswith(_SEARCH)

    def enables(self, tool: Tool) -> bool:
        """Return whether a toolset includes a tool."""
        own = (self.configs or {}).get(tool.name)
        for config in (own, self.default_config):
            if config is not None and config.enabled is not None:
                return config.enabled
        return True


def toolsets(
    servers: Sequence[McpServerDefinition], tools: Sequence[ServerToolFields]
) -> Iterator[Toolset]:
    """Yield the server tools of a request. Raises BadRequest.

    Without a toolset, a server's own configuration counts, as in older betas.
    """
    names = {server.name for server in servers}
    configs: dict[str, ServerToolFields] = {}
    for at, tool in enumerate(tools):
        field = f"tools[{at}]"
        if tool.type == TOOLSET:
            if tool.mcp_server_name not in names:
                expected = ", ".join(sorted(names)) or "mcp_servers"
                raise field_error("request.value", f"{field}.mcp_server_name", expected=expected)
            configs[tool.mcp_server_name or ""] = tool
        elif tool.run_here:
            every, none = (lambda tool: True), (lambda tool: False)
            yield Toolset(field, str(tool.type), WEB, None, every, none, tool.max_uses)
    for at, server in enumerate(servers):
        field = f"mcp_servers[{at}]"
        if server.authorization_token is not None:
            raise field_error("request.unsupported", f"{field}.authorization_token")
        config = configs.get(server.name)
        allows = server.allows if config is None else config.enables
        bound = None if config is None else config.max_uses
        yield Toolset(field, MCP, server.name, server.url, allows, lambda tool: False, bound)


def function_name(name: str, run_here: Sequence[Mapping[str, Any]]) -> str:
    """Return the function meant by a choice of a tool."""
    search = [tool["function"]["name"] for tool in run_here]
    search = [each for each in search if each.startswith(f"{WEB}{Tool.BETWEEN}")]
    return search[0] if search and name == WEB_SEARCH else name


class AnthropicTool(ServerToolFields):
    """A tool. `type` is absent or `custom` for the client's own tools."""

    name: Text | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def own(self) -> bool:
        """Whether the tool is a function of the client; other tools may lack a name."""
        return self.type in (None, "custom")

    def own_name(self, at: str) -> str:
        if self.name is None:
            raise field_error("request.missing", f"{at}.name")
        return self.name


def added_tool(definition: Json, at: str) -> AnthropicTool:
    """Parse a tool added by a message. Raises BadRequest."""
    try:
        return AnthropicTool.model_validate(definition)
    except ValidationError as error:
        raise field_error("request.invalid", at, expected="name, input_schema") from error


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1024)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Body):
    effort: str | None = None
    format: dict[str, Any] | None = None


class MessageRequest(Templated):
    """The body of POST /v1/messages, and of /v1/messages/count_tokens, which needs no
    `max_tokens`.
    """

    messages: Annotated[Listed[AnthropicMessage], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    system: str | Listed[Block] | None = None
    stop_sequences: Stops | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    tools: Listed[AnthropicTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: Listed[McpServerDefinition] | None = None

    def exchange(self) -> Exchange:
        if self.max_tokens is None:
            raise field_error("request.missing", "max_tokens")
        return Exchange(self.generation_request(), bool(self.stream), "msg_", self._encoder, WIRE)

    def generation_request(self) -> GenerationRequest:
        """Return the request in no dialect. Raises BadRequest for contradictory fields."""
        self.refuse(UNSUPPORTED)
        reading = ContentReader()
        instructions = blocks.system(self.system, reading)
        conversation = blocks.rendered(self.messages, reading)
        if not conversation:
            raise field_error("request.empty", "messages")
        tools = self.tools or ()
        sets = tuple(toolsets(self.mcp_servers or (), tools))
        server_tools = ServerTools(sets, self._tools) if sets else None
        request = GenerationRequest(
            messages=tooling.with_names(instructions + conversation),
            template_variables=self._variables(),
            defaults=DialectDefaults(template_variables={} if self.thinking else NOT_THINKING),
            tools=None if sets else self._tools(),
            server_tools=server_tools,
            call_id=tool_id,
            continue_last=_continues(conversation[-1]),
            max_tokens=self.answer_limit(self.max_tokens),
            prewarm=self.prewarms,
            thinking_budget=self._budget(),
            stop_strings=stops(self.stop_sequences),
            structured_output=self._structured_output(),
            warnings=(*self._skipped(), *reading.warnings, *self.without_effect()),
        )
        return self.filled(request)

    def _encoder(self, stream: GenerationStream) -> Encoder:
        hidden = self.thinking is not None and self.thinking.display == "omitted"
        return MessageEncoder(
            stream.id,
            stream.model,
            stream.prompt_n,
            max_tokens=self.answer_limit(self.max_tokens) or 0,
            hidden=hidden,
            run_here={} if stream.tool_loop is None else stream.tool_loop.tools,
            warnings=stream.warnings,
        )

    def _variables(self) -> Json:
        variables: Json = {}
        if self.thinking is not None and self.thinking.type == "disabled":
            variables |= NOT_THINKING
        if self.output_config is not None and self.output_config.effort is not None:
            variables["reasoning_effort"] = self.output_config.effort
        return variables | (self.chat_template_kwargs or {})  # the client's own win

    def _budget(self) -> int | None:
        if self.thinking is None:
            return self.budget()
        if self.thinking.type == "disabled":
            return self.budget(0)
        return self.budget(self.thinking.budget_tokens)

    def _structured_output(self) -> StructuredOutput | None:
        config = self.output_config
        if config is not None and config.format is not None:
            return structured_output(config.format, "output_config.format")
        # name of the field in betas of this API
        return structured_output(self.output_format, "output_format")

    def _skipped(self) -> list[Reason]:
        reasons: list[Reason] = []
        for at, tool in enumerate(self.tools or ()):
            if tool.run_here:
                reasons += tooling.unused_fields(tool, _FILTERS, f"tools[{at}]")
            elif not tool.own:
                reasons.append(skipped(str(tool.type), f"tools[{at}]"))
        return reasons

    def _own_tools(self) -> list[tuple[str, AnthropicTool]]:
        """Return the client's tools by name, including tools added by messages."""
        own = enumerate(self.tools or ())
        named = [(tool.own_name(f"tools[{at}]"), tool) for at, tool in own if tool.own]
        given = {name for name, _ in named}
        for place, definition in blocks.added_tools(self.messages):
            tool = added_tool(definition, place)
            if tool.own and tool.own_name(place) not in given:
                given.add(tool.own_name(place))
                named.append((tool.own_name(place), tool))
        return named

    def _tools(self, run_here: Sequence[Json] = ()) -> ToolUse | None:
        """Return the tool use, with the server's functions. Raises BadRequest."""
        choice = self.tool_choice or ToolChoice(type="auto")
        if choice.type == "tool" and choice.name is None:
            raise field_error("request.missing", "tool_choice.name")
        name = None
        if choice.type == "tool":
            name = function_name(choice.name or "", run_here)
        own = self._own_tools()
        return tooling.tool_use(
            [
                *(
                    tooling.function(name, tool.description, tool.input_schema)
                    for name, tool in own
                ),
                *run_here,
            ],
            choice.type,
            name=name,
            single=bool(choice.disable_parallel_tool_use),
            strict=(name for name, tool in own if tool.strict),
        )


def _continues(last: Json) -> bool:
    """Whether the answer completes the last message.

    Raises BadRequest for open tool calls or trailing white space.
    """
    if last["role"] != "assistant":
        return False
    if "tool_calls" in last:
        raise BadRequest("tools.no_result", param="messages")
    if last["content"] != last["content"].rstrip():
        raise BadRequest("request.trailing", param="messages")
    return True
