"""GLM 4.5 to 4.7, Laguna, Longcat.

<tool_call>look
<arg_key>at</arg_key>
<arg_value>x</arg_value>
</tool_call>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags


def _format(prefix: str, templates: tuple[tuple[str, ...], ...]) -> CallFormat:
    """Return the format with tags that begin with `prefix`."""
    key, value = f"{prefix}arg_key", f"{prefix}arg_value"
    return CallFormat(
        start=f"<{prefix}tool_call>",
        end=f"</{prefix}tool_call>",
        templates=templates,
        begins=rf"\s*(?:[\[{{]|[\w.:/-]+\s*(?:<{key}>|</|\{{|\n))",
        head=rf"\s*{NAME}\s*(?=<{key}>)",
        tags=Tags(
            opens=rf"<{key}>\s*(?P<name>[^<>]+?)\s*</{key}>\s*<{value}>",
            closes=f"</{value}>",
        ),
        opening="{name}\n",
    )


GLM: Final = _format("", (("<arg_key>", "<tool_call>"),))
LONGCAT: Final = _format("longcat_", (("<longcat_arg_key>",),))
