"""Tools that are left out of a request: the answer has a warning for each.

Clients send them with every request and work without them: Codex a web search, for one.
"""

from __future__ import annotations

from typing import Final

from omlx.errors import Reason

_AT_PROVIDER: Final = (
    "web_search",
    "web_fetch",
    "file_search",
    "code_interpreter",
    "code_execution",
    "image_generation",
    "mcp",
    "tool_search",
    "advisor",
)
"""Beginnings of the types of tools that run on OpenAI's or Anthropic's servers."""
_AT_CLIENT: Final = (
    "local_shell",
    "shell",
    "apply_patch",
    "computer",
    "bash",
    "text_editor",
    "memory",
    "custom",
)
"""Beginnings of the types that run at the client, with calls in a form of their own."""


def skipped(kind: str, field: str) -> Reason:
    """Return the warning about a tool of type `kind`; `field` is its place in the request."""
    code = "tools.skipped.unknown"
    if kind.startswith(_AT_PROVIDER):
        code = "tools.skipped.provider"
    elif kind.startswith(_AT_CLIENT):
        code = "tools.skipped.client"
    return Reason(code, {"field": field, "type": kind[:100]})
