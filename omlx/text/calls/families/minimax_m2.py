"""MiniMax-M2.

<minimax:tool_call>
<invoke name="look">
<parameter name="at">x</parameter>
</invoke>
</minimax:tool_call>
"""

from __future__ import annotations

from typing import Final

from omlx.text.calls.format import NAME, CallFormat, Tags

FORMAT: Final = CallFormat(
    start="<minimax:tool_call>",
    end="</minimax:tool_call>",
    templates=(("<minimax:tool_call>",),),
    begins=r"\s*<invoke name=",
    bare=("<invoke name=",),
    head=rf"""\s*<invoke name=["']?{NAME}["']?>""",
    tags=Tags(
        opens=r"""<parameter name=["']?(?P<name>[^<>"'\n]+)["']?>""",
        closes="</parameter>",
        ends="</invoke>",
    ),
    written='\n<invoke name="{name}">\n{arguments}</invoke>\n',
    parameter='<parameter name="{name}">{value}</parameter>\n',
    together=True,
)
