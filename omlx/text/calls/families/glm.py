"""GLM 4.5 to 4.7, Laguna, Longcat; newer ones without line breaks.

<tool_call>look
<arg_key>at</arg_key>
<arg_value>x</arg_value>
</tool_call>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags


def _format(prefix: str, line: str, templates: tuple[tuple[str, ...], ...]) -> CallFormat:
    """Return the format with tags that begin with `prefix`; `line` is written between tags."""
    key, value = f"{prefix}arg_key", f"{prefix}arg_value"
    return CallFormat(
        start=f"<{prefix}tool_call>",
        end=f"</{prefix}tool_call>",
        templates=templates,
        begins=rf"\s*(?:[\[{{]|[\w.:/-]+\s*(?:<{key}>|</|\{{|\n))",
        head=rf"\s*{NAME}\s*(?=<{key}>|</{prefix}tool_call>|\{{)",
        tags=Tags(
            opens=rf"<{key}>\s*(?P<name>[^<>]+?)\s*(?:</{key}>)?\s*<{value}>",
            closes=f"</{value}>",
        ),
        written=f"{{name}}{line}{{arguments}}",
        parameter=f"<{key}>{{name}}</{key}>{line}<{value}>{{value}}</{value}>{line}",
        between="\n",
    )


GLM_LINES: Final = _format(
    "",
    "\n",
    (("</arg_key>\n<arg_value>", "<tool_call>"), ("</arg_key>\\n", "<arg_value>", "<tool_call>")),
)
"""GLM 4.5 and 4.6, Ling, Laguna XS."""
GLM: Final = _format("", "", (("<arg_key>", "<tool_call>"),))
LONGCAT: Final = _format("longcat_", "\n", (("<longcat_arg_key>",),))
