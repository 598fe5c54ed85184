"""MiniCPM5: `<function name="look"><param name="at">x</param></function>`."""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags

FORMAT: Final = CallFormat(
    start="<function name=",
    end="</function>",
    templates=(('<function name="', '<param name="'),),
    begins=r"""\s*(?:"[^"<>\n]{1,64}"|'[^'<>\n]{1,64}'|[\w.:-]{1,64})\s*>""",
    head=rf"""\s*["']?{NAME}["']?\s*>\s*(?=<param |</function>|\{{)""",
    tags=Tags(
        opens=r"""<param\s+name\s*=\s*["']?(?P<name>[^<>"'\n]+)["']?\s*>""",
        closes="</param>",
        cdata=True,
    ),
    written='"{name}">{arguments}',
    parameter='<param name="{name}">{value}</param>',
)
