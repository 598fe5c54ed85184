"""Families whose arguments are between tags, each value as plain text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import regex as re

from omlx.text.calls.arguments import TagArguments
from omlx.text.calls.format import NAME, CallFormat, Tags, Tools
from omlx.text.calls.values import parse_json

MINIMAX_M2: Final = CallFormat(
    start="<minimax:tool_call>",
    end="</minimax:tool_call>",
    templates=(("<minimax:tool_call>",),),
    parser="minimax_m2",
    begins=r"\s*<invoke name=",
    bare=("<invoke name=",),
    head=rf"""\s*<invoke name=["']?{NAME}["']?>""",
    tags=Tags(
        opens=r"""<parameter name=["']?(?P<name>[^<>"'\n]+)["']?>""",
        closes="</parameter>",
        ends="</invoke>",
    ),
    written='\n<invoke name="{name}">\n{arguments}</invoke>\n',
    syntax=TagArguments('<parameter name="{name}">{value}</parameter>\n'),
    together=True,
)
SEED_OSS: Final = CallFormat(
    start="<seed:tool_call>",
    end="</seed:tool_call>",
    templates=(("<seed:tool_call>",),),
    begins=r"\s*<function=",
    bare=("<function=",),
    head=rf"\s*<function={NAME}>?\s*(?=<(?:parameter=|/function>|/seed:tool_call>)|\{{)",
    tags=Tags(opens=r"<parameter=(?P<name>[^<>\n]+)>", closes="</parameter>", ends="</function>"),
    written="\n<function={name}>\n{arguments}</function>\n",
    syntax=TagArguments("<parameter={name}>{value}</parameter>\n"),
    between="\n",
)
QWEN3_CODER: Final = CallFormat(
    start="<tool_call>",
    end="</tool_call>",
    templates=(("<tool_call>", "<function=", "<parameter="),),
    parser="qwen3_coder",
    begins=r"\s*<function=",
    bare=("<function=",),
    head=rf"\s*<function={NAME}>?\s*(?=<(?:parameter=|/function>|/tool_call>)|\{{)",
    tags=Tags(
        opens=r"<parameter=(?P<name>[^<>\n]+)(?:>|(?=\n))",
        closes="</parameter>",
        ends="</function>",
        padding="\n",
    ),
    written="\n<function={name}>\n{arguments}</function>\n",
    syntax=TagArguments("<parameter={name}>\n{value}\n</parameter>\n"),
    between="\n",
)
"""Format of Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5 and 3.7, MiMo V2.

These models forget the opening marker, or write several functions between a pair of markers.
"""
MINICPM5: Final = CallFormat(
    start="<function name=",
    end="</function>",
    templates=(('<function name="', '<param name="'),),
    parser="minicpm5",
    begins=r"""\s*(?:"[^"<>\n]{1,64}"|'[^'<>\n]{1,64}'|[\w.:-]{1,64})\s*>""",
    head=rf"""\s*["']?{NAME}["']?\s*>\s*(?=<param |</function>|\{{)""",
    tags=Tags(
        opens=r"""<param\s+name\s*=\s*["']?(?P<name>[^<>"'\n]+)["']?\s*>""",
        closes="</param>",
        cdata=True,
    ),
    written='"{name}">{arguments}',
    syntax=TagArguments('<param name="{name}">{value}</param>'),
)


def _glm(
    prefix: str, line: str, templates: tuple[tuple[str, ...], ...], parser: str = ""
) -> CallFormat:
    """Return the format with tags that begin with `prefix`; `line` is written between tags."""
    key, value = f"{prefix}arg_key", f"{prefix}arg_value"
    return CallFormat(
        start=f"<{prefix}tool_call>",
        end=f"</{prefix}tool_call>",
        templates=templates,
        parser=parser,
        begins=rf"\s*(?:[\[{{]|[\w.:/-]+\s*(?:<{key}>|</|\{{|\n))",
        head=rf"\s*{NAME}\s*(?=<{key}>|</{prefix}tool_call>|\{{)",
        tags=Tags(
            opens=rf"<{key}>\s*(?P<name>[^<>]+?)\s*(?:</{key}>)?\s*<{value}>",
            closes=f"</{value}>",
        ),
        written=f"{{name}}{line}{{arguments}}",
        syntax=TagArguments(f"<{key}>{{name}}</{key}>{line}<{value}>{{value}}</{value}>{line}"),
        between="\n",
    )


GLM_LINES: Final = _glm(
    "",
    "\n",
    (("</arg_key>\n<arg_value>", "<tool_call>"), ("</arg_key>\\n", "<arg_value>", "<tool_call>")),
)
"""Format of GLM 4.5 and 4.6, Ling, Laguna XS."""
GLM: Final = _glm("", "", (("<arg_key>", "<tool_call>"),), "glm47")
LONGCAT: Final = _glm("longcat_", "\n", (("<longcat_arg_key>",),), "longcat")


def _sectioned(
    prefix: str,
    suffix: str,
    templates: tuple[tuple[str, ...], ...],
    *,
    separator: str = "",
    line: str = "\n",
) -> CallFormat:
    """Return the format with a section of calls, and `prefix` and `suffix` in every tag.

    `separator` is the tag behind a function's name, which models forget; `line` is written between
    tags.
    """

    def tag(name: str, slash: str = "") -> str:
        return f"<{slash}{prefix}{name}{suffix}>"

    def pattern(name: str, slash: str = "") -> str:
        return str(re.escape(tag(name, slash)))

    call, end, key, value = pattern("tool_call"), tag("tool_call", "/"), tag("arg_key"), "arg_value"
    named = rf"\s*(?:{pattern(separator)}|(?={re.escape(key)}|{re.escape(end)}))"
    typed = rf"(?:\s*{pattern('arg_type')}[^<]*{pattern('arg_type', '/')})?"
    middle = rf"\s*{pattern('arg_key', '/')}{typed}\s*"
    behind = tag(separator) if separator else ""
    return CallFormat(
        start=tag("tool_calls"),
        end=tag("tool_calls", "/"),
        templates=templates,
        begins=rf"\s*(?:{call}|[\w.:/-]+{named})",
        bare=(tag("tool_call"),),
        head=rf"\s*(?:{call})?\s*{NAME}{named}",
        tags=Tags(
            opens=rf"{re.escape(key)}\s*(?P<name>[^<>]+?){middle}{pattern(value)}",
            closes=tag(value, "/"),
            ends=re.escape(end),
        ),
        written=f"{tag('tool_call')}{{name}}{behind}{line}{{arguments}}{end}{line}",
        syntax=TagArguments(
            f"{key}{{name}}{tag('arg_key', '/')}{line}{tag(value)}{{value}}{tag(value, '/')}{line}"
        ),
        together=True,
        section=(line, ""),
    )


HY3: Final = _sectioned(
    "", ":opensource", (("<tool_calls{}>", "':opensource'"),), separator="tool_sep"
)
"""Format whose markers all end in the name of the variant."""
HY3_PREVIEW: Final = _sectioned("", "", (("<tool_calls>", "<tool_sep>"),), separator="tool_sep")
HY4: Final = _sectioned("", "", (("<tool_calls>", "<tool_call>", "<arg_key>"),), line="")
_IFM_CALL: Final = re.compile(r"</?ifm\|tool_call>")


def _read_objects(text: str, tools: Tools) -> list[dict[str, Any]]:
    """Parse calls that are JSON objects, each between tags. Raises ValueError."""
    calls: list[dict[str, Any]] = []
    for body in filter(str.strip, _IFM_CALL.split(text)):
        parsed = parse_json(body)
        calls += parsed if isinstance(parsed, list) else [parsed]
    return calls


K2_HORIZON: Final = replace(
    _sectioned("ifm|", "", (("<ifm|tool_calls>",),)), read=_read_objects, json=False
)
"""Format of K2 Horizon; its template may ask for JSON objects between the tags."""
KIMI_K3: Final = CallFormat(
    start="<|open|>tools<|sep|>",
    end="<|close|>tools<|sep|>",
    parser="kimi_k3",
    begins=r"\s*<\|open\|>call",
    bare=("<|open|>call",),
    head=rf'\s*<\|open\|>call\s+tool="{NAME}"(?:(?!<\|sep\|>).)*<\|sep\|>\s*'
    r"(?=<\|open\|>argument|<\|close\|>|\{)",
    tags=Tags(
        opens=r'<\|open\|>argument\s+key="(?P<name>[^"<>]+)"'
        r'(?:\s+type="(?:(?P<text>string)|(?P<json>\w+))")?\s*<\|sep\|>',
        closes="<|close|>argument<|sep|>",
        ends=r"<\|close\|>call<\|sep\|>",
    ),
    written='<|open|>call tool="{name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>',
    syntax=TagArguments(
        '<|open|>argument key="{name}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>'
    ),
    together=True,
)
_ATTRIBUTES: Final = r'(?:\s+\w+="[^"<>]*")*'
MUSE_SPARK: Final = CallFormat(
    start="<atem:function_calls>",
    end="</atem:function_calls>",
    parser="muse_spark",
    begins=r"\s*<atem:invoke",
    bare=("<atem:invoke",),
    head=rf'\s*<atem:invoke{_ATTRIBUTES}\s+name="{NAME}">',
    tags=Tags(
        opens=rf'<atem:parameter{_ATTRIBUTES}\s+name="(?P<name>[^"<>]+)"{_ATTRIBUTES}>',
        closes="</atem:parameter>",
        ends="</atem:invoke>",
    ),
    written='\n<atem:invoke name="{name}">\n{arguments}</atem:invoke>\n',
    syntax=TagArguments('<atem:parameter name="{name}">{value}</atem:parameter>\n'),
    together=True,
)


def _dsml(section: str) -> CallFormat:
    """Return DeepSeek's format; `section` is the name of the calls' section."""
    token = "｜DSML｜"
    return CallFormat(
        start=f"<{token}{section}>",
        end=f"</{token}{section}>",
        templates=((token, f"{section}>"),),
        begins=rf"\s*<{token}invoke",
        bare=(f"<{token}invoke",),
        head=rf'\s*<{token}invoke\s+name="{NAME}"\s*>',
        tags=Tags(
            opens=rf'<{token}parameter\s+name="(?P<name>[^"<>\n]+)"'
            r'(?:\s+string="(?:(?P<text>true)|(?P<json>false))")?\s*>',
            closes=f"</{token}parameter>",
            ends=f"</{token}invoke>",
        ),
        written=f'<{token}invoke name="{{name}}">\n{{arguments}}</{token}invoke>\n',
        syntax=TagArguments(
            f'<{token}parameter name="{{name}}" string="{{text}}">{{value}}</{token}parameter>\n'
        ),
        together=True,
        section=("\n", ""),
    )


DEEPSEEK_3_2: Final = _dsml("function_calls")
DEEPSEEK_4: Final = _dsml("tool_calls")
