"""Tools of the Responses API: functions of the client, and server tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from omlx.errors import Reason
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.fields import FUNCTION, Body, Listed, Text, ToolType
from omlx.server.request.tooling import skipped
from omlx.tools.tool import MCP, WEB, OfferedTool, Tool, ToolResult, Toolset

_INPUT: Final[Json] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_DOT: Final = "."
_NAMESPACE: Final = "namespace"
CALLABLE: Final = (FUNCTION, "custom")
"""Types of functions of the client."""
FIELD: Final = "tools"
SEARCH: Final = "web_search"
"""Beginning of the types of web search."""
_FILTERS: Final = ("filters", "user_location")
_ELSEWHERE: Final = ("connector_id", "tunnel_id", "headers", "authorization")
"""Fields of servers outside the settings."""


class ToolFilter(Body):
    """Filter of tools by name, or by the server's word about side effects."""

    tool_names: Listed[str] | None = None
    read_only: bool | None = None

    def matches(self, tool: Tool) -> bool:
        named = self.tool_names is None or tool.name in self.tool_names
        return named and self.read_only in (None, tool.read_only)


class ApprovalFilter(Body):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class ResponseTool(Body):
    """A tool of any type, which decides the fields present."""

    type: ToolType = FUNCTION
    name: Text | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: Listed[ResponseTool] | None = None
    server_label: Text | None = None
    server_url: Text | None = None
    allowed_tools: Listed[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalFilter | None = None

    def allows(self, tool: Tool) -> bool:
        """Return whether the request may call a tool of the MCP server."""
        allowed = self.allowed_tools
        if isinstance(allowed, ToolFilter):
            return allowed.matches(tool)
        return allowed is None or tool.name in allowed

    def asks(self, tool: Tool) -> bool:
        """Return whether calls of a tool wait for an approval, as they do by default."""
        rule = self.require_approval
        if not isinstance(rule, ApprovalFilter):
            return rule != "never"
        if rule.never is not None and rule.never.matches(tool):
            return False
        return rule.always is None or rule.never is not None or rule.always.matches(tool)

    def toolset(self, at: str) -> Toolset:
        """Return the tools of an MCP server, or of web search. Raises BadRequest."""
        if self.type != MCP:
            return Toolset(at, self.type, WEB, None, lambda tool: True, lambda tool: False)
        for name in _ELSEWHERE:
            if (self.model_extra or {}).get(name) is not None:
                raise field_error("request.unsupported", f"{at}.{name}")
        if self.server_label is None:
            raise field_error("request.missing", f"{at}.server_label")
        address, label = self.server_url, self.server_label
        return Toolset(at, MCP, label, address, self.allows, self.asks)


@dataclass(frozen=True, slots=True)
class ToolName:
    """A tool as named in calls of responses."""

    name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def qualified(self) -> str:
        """Name shown to the model."""
        if self.namespace is None:
            return self.name
        return f"{self.namespace}{_DOT}{self.name}"


def is_run_here(tool: ResponseTool) -> bool:
    """Return whether the server may run a tool: of MCP servers, and web search."""
    return tool.type == MCP or tool.type.startswith(SEARCH)


def toolsets(tools: Sequence[ResponseTool]) -> tuple[Toolset, ...]:
    """Return the server tools of a request. Raises BadRequest."""
    every = enumerate(tools)
    return tuple(tool.toolset(f"tools[{at}]") for at, tool in every if is_run_here(tool))


def joined_tools(
    tools: Sequence[ResponseTool], further: Sequence[ResponseTool]
) -> list[ResponseTool]:
    """Return `tools`, then the tools of `further` with new names: items repeat listed tools."""
    names = set(by_qualified_name(tools))
    every = list(tools)
    for tool in further:
        if tool.type == _NAMESPACE:
            inner = [
                part
                for part in tool.tools or ()
                if ToolName(part.name or "", tool.name).qualified not in names
            ]
            tool = tool.model_copy(update={"tools": inner})
        elif tool.type not in CALLABLE or names.issuperset(by_qualified_name([tool])):
            continue
        names.update(by_qualified_name([tool]))
        every.append(tool)
    return every


def declared_functions(tools: Sequence[ResponseTool]) -> list[Json]:
    """Return the callable tools as templates expect them."""
    declared = []
    for name, tool in _flat(tools):
        parameters = _INPUT if name.custom else tool.parameters
        declared.append(tooling.function(name.qualified, tool.description, parameters))
    return declared


def strict_names(tools: Sequence[ResponseTool]) -> list[str]:
    return [name.qualified for name, tool in _flat(tools) if tool.strict]


def by_qualified_name(tools: Sequence[ResponseTool]) -> dict[str, ToolName]:
    return {name.qualified: name for name, _ in _flat(tools)}


def skipped_tools(
    tools: Sequence[ResponseTool], *, nested: bool = False, field: str = FIELD
) -> list[Reason]:
    """Return the reasons for tools left out; server tools stand in `FIELD` alone."""
    reasons: list[Reason] = []
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        if tool.type == _NAMESPACE and not nested:
            reasons += skipped_tools(tool.tools or (), nested=True, field=f"{at}.tools")
        elif field == FIELD and is_run_here(tool):
            reasons += tooling.unused_fields(tool, _FILTERS, at)
        elif tool.type not in CALLABLE:
            reasons.append(skipped(tool.type, at))
    return reasons


def _flat(
    tools: Sequence[ResponseTool], namespace: str | None = None, field: str = "tools"
) -> Iterator[tuple[ToolName, ResponseTool]]:
    """Yield the functions of the client. Raises BadRequest for a tool without a name."""
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        is_namespace = tool.type == _NAMESPACE and namespace is None
        if not is_namespace and tool.type not in CALLABLE:
            continue
        if tool.name is None:
            raise field_error("request.missing", f"{at}.name")
        if is_namespace:
            yield from _flat(tool.tools or (), tool.name, f"{at}.tools")
        else:
            yield ToolName(tool.name, namespace, tool.type == "custom"), tool


class ServerChoice(Body):
    """Choice of a server tool, or of all tools of an MCP server."""

    type: Annotated[str, Field(pattern="^(mcp|web_search.*)$")]
    server_label: Text | None = None
    name: Text | None = None


class ResponseAllowed(Body):
    """A tool of any type; types that are left out may lack a name."""

    type: str
    name: Text | None = None
    namespace: Text | None = None
    server_label: Text | None = None


def server_functions(chosen: ServerChoice | ResponseAllowed, run_here: Sequence[Json]) -> list[str]:
    """Return the functions meant by a choice of a server tool; empty for other tools."""
    prefix = f"{chosen.server_label if chosen.type == MCP else WEB}{Tool.BETWEEN}"
    if chosen.type != MCP and not chosen.type.startswith(SEARCH):
        return []
    if chosen.type == MCP and chosen.name is not None:
        return [f"{prefix}{chosen.name}"]
    names = (str(function["function"]["name"]) for function in run_here)
    return [name for name in names if name.startswith(prefix)]


APPROVAL: Final = "mcpr_"
"""Beginning of the ids of requests for an approval: the ids of their calls in conversations."""


def server_item(known: OfferedTool, call: str) -> tuple[str, Json]:
    """Return id prefix and first fields of a server tool's item."""
    tool = known.tool
    if tool.server == WEB:
        return "ws", {"type": "web_search_call", "action": {"type": "search", "query": ""}}
    named = {"server_label": tool.server, "name": tool.name, "arguments": ""}
    approved = call.startswith(APPROVAL)
    if known.asks and not approved:
        return "mcpr", {"type": "mcp_approval_request", **named}
    approval = call if approved else None
    open_result = {"approval_request_id": approval, "output": None, "error": None}
    return "mcp", {"type": "mcp_call", **named, **open_result}


def result_fields(kind: str, result: ToolResult, arguments: str) -> Json:
    """Return the fields of a server tool's item after the result."""
    if kind == "mcp_call" and not result.failed:
        return {"output": result.text}
    if kind == "mcp_call":
        content = [{"type": "text", "text": result.text}]
        return {"error": {"type": "mcp_tool_execution_error", "content": content}}
    query = str(tooling.argument_object(arguments).get("query", ""))
    sources = [{"type": "url", "url": page.url} for page in result.pages]
    action = {"type": "search", "query": query, "queries": [query], "sources": sources}
    return {"action": action, "results": [asdict(page) for page in result.pages]}


def listed_tools(tools: Sequence[Tool]) -> list[Json]:
    """Return tools as an `mcp_list_tools` item has them."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": tool.schema,
            "annotations": {"read_only": tool.read_only},
        }
        for tool in tools
    ]
