"""The Responses API: a JSON body to a `GenerationRequest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from omlx.errors import BadRequest, Reason
from omlx.server.dialects.openai.chat_request import implied_budget, variables
from omlx.server.dialects.openai.choices_encoder import Head
from omlx.server.dialects.openai.responses_encoder import ResponseEncoder
from omlx.server.dialects.openai.responses_items import Conversation, Item
from omlx.server.dialects.openai.responses_tools import (
    CALLABLE,
    ResponseAllowed,
    ResponseTool,
    ServerChoice,
    ToolName,
    by_qualified_name,
    declared_functions,
    joined_tools,
    server_functions,
    skipped_tools,
    strict_names,
    toolsets,
)
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.fields import (
    Body,
    Choice,
    Listed,
    Templated,
    Text,
    limit,
)
from omlx.server.request.generation_request import GenerationRequest, ServerTools
from omlx.server.request.stream import GenerationStream
from omlx.server.request.structured_output import structured_output
from omlx.text.tools import ToolUse

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "conversation": (),
    "prompt": (),
    "moderation": (),
}
"""Unsupported fields, each with the values that request nothing."""
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"
MAX_METADATA: Final = 1_000


class Named(Body):
    type: Literal["function", "custom"]
    name: Text
    namespace: Text | None = None

    @property
    def qualified(self) -> str:
        return ToolName(self.name, self.namespace).qualified


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Listed[ResponseAllowed]


class Reasoning(Body):
    effort: str | None = None
    summary: str | None = None


class TextConfig(Body):
    format: dict[str, Any] | None = None


class ResponseRequest(Templated):
    """The body of POST /v1/responses."""

    input: str | Listed[Item] | None = None
    instructions: str | None = None
    previous_response_id: Text | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: int | None = None
    tools: Listed[ResponseTool] | None = None
    tool_choice: Choice | Named | AllowedTools | ServerChoice | None = None
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    include: Listed[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    continue_final_message: bool | None = None
    mark_drafted: bool | None = None

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def items(self) -> list[Item]:
        if isinstance(self.input, str):
            return [Item(role="user", content=self.input)]
        return self.input or []

    def conversation(self, before: Sequence[Json]) -> Conversation:
        """Return the messages `before` and those of the input, without the instructions.

        A list without messages is a user turn without text. Raises BadRequest.
        """
        conversation = Conversation(before)
        for at, item in enumerate(self.items):
            conversation.add(item, f"input[{at}]")
        if not conversation.messages and self.input is None:
            raise field_error("request.empty", "input")
        if not conversation.messages:
            conversation.add(Item(role="user", content=""), "input")
        return conversation

    def generation_request(self, conversation: Conversation) -> GenerationRequest:
        """Return the request in no dialect. Raises BadRequest for contradictory fields."""
        self.refuse(UNSUPPORTED)
        if self.background and not self.stored:
            raise BadRequest("request.background_store", param="background")
        effort = self.reasoning.effort if self.reasoning else None
        tools = self.all_tools(conversation)
        sets = toolsets(self.tools or ())
        if conversation.approved and not sets:
            raise field_error("request.missing", "tools")
        server_tools = None
        if sets:
            choose, approved = partial(self._tools, tools), frozenset(conversation.approved)
            server_tools = ServerTools(sets, choose, approved, self.max_tool_calls)
        format = self.text.format if self.text else None
        request = GenerationRequest(
            messages=tooling.with_names(_instructed(self.instructions, conversation.messages)),
            truncates=self.truncation == "auto",
            template_variables=variables(effort, self.chat_template_kwargs),
            tools=None if sets else self._tools(tools),
            server_tools=server_tools,
            continue_last=bool(self.continue_final_message),
            max_tokens=self.answer_limit(limit(self.max_output_tokens, "max_output_tokens")),
            prewarm=self.prewarms,
            thinking_budget=self.budget(implied_budget(effort)),
            top_logprobs=(self.top_logprobs or 0) if self._logprobs else None,
            structured_output=structured_output(format, "text.format"),
            warnings=(
                *self._skipped(conversation),
                *conversation.reading.warnings,
                *self.without_effect(),
            ),
            mark_drafted=bool(self.mark_drafted),
        )
        return self.filled(request)

    def all_tools(self, conversation: Conversation) -> list[ResponseTool]:
        """Return the tools of the request and of the items."""
        tools = list(self.tools or ())
        for further in conversation.tools.values():
            tools = joined_tools(tools, further)
        return tools

    def encoder(self, stream: GenerationStream, conversation: Conversation) -> ResponseEncoder:
        tools = by_qualified_name(self.all_tools(conversation))
        encrypted = ENCRYPTED in (self.include or ())
        head = Head.of(stream, logprobs=self._logprobs)
        return ResponseEncoder(
            head,
            self._echo() | {"seed": stream.seed},
            tools=tools,
            run_here={} if stream.tool_loop is None else stream.tool_loop.tools,
            encrypted=encrypted,
            prewarms=self.prewarms,
        )

    def _skipped(self, conversation: Conversation) -> list[Reason]:
        reasons = skipped_tools(self.tools or ())
        for field, tools in conversation.tools.items():
            reasons += skipped_tools(tools, field=field)
        return reasons

    @property
    def extra_fields(self) -> Mapping[str, Any]:
        nested = self.text.model_extra if self.text is not None else None
        return {**super().extra_fields, **(nested or {})}

    @property
    def _logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def _echo(self) -> Json:
        """Return the fields of the request repeated in the response."""
        fields = {"tools", "reasoning", "text", "tool_choice"}
        given = self.model_dump(exclude_none=True, include=fields)
        kwargs = self.chat_template_kwargs
        return {
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
            "background": bool(self.background),
            "store": self.stored,
            "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tools": given.get("tools", []),
            "tool_choice": given.get("tool_choice", "auto"),
            "reasoning": {"effort": None, "summary": None} | given.get("reasoning", {}),
            "text": {"format": {"type": "text"}} | given.get("text", {}),
            "truncation": self.truncation or "disabled",
            "metadata": self.metadata or {},
            "user": self.user,
            **{k: v for k, v in self.sampling.items() if k not in ("temperature", "top_p")},
            **({} if kwargs is None else {"chat_template_kwargs": kwargs}),
            **({} if self.used_tier is None else {"service_tier": self.used_tier}),
        }

    def _tools(
        self, tools: Sequence[ResponseTool], run_here: Sequence[Json] = ()
    ) -> ToolUse | None:
        """Return the tool use, with the server's functions. Raises BadRequest."""
        name = allowed = None
        mode: str | None = None
        match self.tool_choice:
            case Named() as named:
                name = named.qualified
            case ServerChoice() as chosen:
                mode, allowed = "required", server_functions(chosen, run_here)
            case AllowedTools() as given:
                mode = given.mode
                allowed = [
                    ToolName(tool.name, tool.namespace).qualified
                    for tool in given.tools
                    if tool.type in CALLABLE and tool.name is not None
                ]
                for tool in given.tools:
                    allowed += server_functions(tool, run_here)
            case choice:
                mode = choice
        return tooling.tool_use(
            [*declared_functions(tools), *run_here],
            mode,
            name=name,
            allowed=allowed,
            single=self.parallel_tool_calls is False,
            strict=strict_names(tools),
        )


def _instructed(instructions: str | None, conversation: Sequence[Json]) -> list[Json]:
    """Merge the instructions and a leading system message: few templates accept two."""
    if not instructions:
        return list(conversation)
    first, rest = conversation[0], conversation[1:]
    if first["role"] == "system":
        return [{"role": "system", "content": f"{instructions}\n\n{first['content']}"}, *rest]
    return [{"role": "system", "content": instructions}, *conversation]
