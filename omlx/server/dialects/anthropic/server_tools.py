"""Server tools in Anthropic's dialect: MCP servers and web search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from omlx.errors import Reason
from omlx.server.dialects.anthropic.blocks import (
    MCP_RESULT,
    MCP_USE,
    SEARCH_RESULT,
    SEARCH_USE,
    WEB_SEARCH,
)
from omlx.server.http.body import Json
from omlx.server.http.errors import field_error
from omlx.server.request import tooling
from omlx.server.request.content import encode_reasoning
from omlx.server.request.fields import Body, Listed, Text
from omlx.tools.tool import OfferedTool, Tool, ToolResult, Toolset
from omlx.tools.web import NAME as WEB

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

    def without_effect(self, at: str) -> list[Reason]:
        """Warn of bounds of a search without effect."""
        return tooling.without_effect(self.model_extra or {}, _FILTERS, at)

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
            yield Toolset(field, str(tool.type), WEB, None, lambda tool: True, lambda tool: False)
    for at, server in enumerate(servers):
        field = f"mcp_servers[{at}]"
        if server.authorization_token is not None:
            raise field_error("request.unsupported", f"{field}.authorization_token")
        config = configs.get(server.name)
        allows = server.allows if config is None else config.enables
        yield Toolset(field, "mcp", server.name, server.url, allows, lambda tool: False)


def max_calls(tools: Sequence[ServerToolFields]) -> int | None:
    """Return the bound of calls; None without a bound."""
    bounds = [tool.max_uses for tool in tools if tool.run_here and tool.max_uses is not None]
    return min(bounds, default=None)


def function_name(name: str, run_here: Sequence[Mapping[str, Any]]) -> str:
    """Return the function meant by a choice of a tool."""
    search = [tool["function"]["name"] for tool in run_here]
    search = [each for each in search if each.startswith(f"{WEB}{Tool.BETWEEN}")]
    return search[0] if search and name == WEB_SEARCH else name


def call_block(id: str, name: str, known: OfferedTool | None) -> tuple[str, Json]:
    """Return type and first fields of a call's block."""
    if known is None:
        return "tool_use", {"id": id, "name": name, "input": {}}
    number = id.rpartition("_")[2]
    tool = known.tool
    if tool.server == WEB:
        return SEARCH_USE, {"id": f"srvtoolu_{number}", "name": WEB_SEARCH, "input": {}}
    fields = {"id": f"mcptoolu_{number}", "name": tool.name, "server_name": tool.server}
    return MCP_USE, {**fields, "input": {}}


def result_block(kind: str, id: str, result: ToolResult) -> tuple[str, Json]:
    """Return type and fields of a result's block; `kind`: type of the call's block.

    The excerpt of a page travels in `encrypted_content`, for the next turn.
    """
    if kind == MCP_USE:
        content = [{"type": "text", "text": result.text}]
        return MCP_RESULT, {"tool_use_id": id, "is_error": result.failed, "content": content}
    found: Any = [
        {
            "type": "web_search_result",
            "title": page.title,
            "url": page.url,
            "encrypted_content": encode_reasoning(page.excerpt),
            "page_age": None,
        }
        for page in result.pages
    ]
    if result.failed:
        found = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    return SEARCH_RESULT, {"tool_use_id": id, "content": found}
