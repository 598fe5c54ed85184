"""DeepSeek V3.2 and V4, which tell strings from other values by an attribute.

<｜DSML｜function_calls>
<｜DSML｜invoke name="look">
<｜DSML｜parameter name="at" string="true">x</｜DSML｜parameter>
</｜DSML｜invoke>
</｜DSML｜function_calls>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags

_TOKEN: Final = "｜DSML｜"


def _format(section: str) -> CallFormat:
    """Return the format with the name of the section that holds the calls."""
    return CallFormat(
        start=f"<{_TOKEN}{section}>",
        end=f"</{_TOKEN}{section}>",
        templates=((_TOKEN, f"{section}>"),),
        begins=rf"\s*<{_TOKEN}invoke",
        bare=(f"<{_TOKEN}invoke",),
        head=rf'\s*<{_TOKEN}invoke\s+name="{NAME}"\s*>',
        tags=Tags(
            opens=rf'<{_TOKEN}parameter\s+name="(?P<name>[^"<>\n]+)"'
            r'(?:\s+string="(?:(?P<text>true)|(?P<json>false))")?\s*>',
            closes=f"</{_TOKEN}parameter>",
            ends=f"</{_TOKEN}invoke>",
        ),
        written=f'<{_TOKEN}invoke name="{{name}}">\n{{arguments}}</{_TOKEN}invoke>\n',
        parameter=f'<{_TOKEN}parameter name="{{name}}" string="{{text}}">{{value}}'
        f"</{_TOKEN}parameter>\n",
        together=True,
        section=("\n", ""),
    )


V3_2: Final = _format("function_calls")
V4: Final = _format("tool_calls")
