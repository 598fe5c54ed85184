"""The tool-call markup of each model family: what mlx-lm's parsers do not say about the formats
that they parse.

mlx-lm chooses the parser by the chat template and knows the markers around a call; `CALL_FORMATS`
adds the rest, by the name of the parser's module.
"""

from __future__ import annotations

import re as standard_re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import regex as re

from omlx.text import harmony

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Parse: TypeAlias = Callable[[str, Sequence[Mapping[str, Any]]], Any]

_NAME = r"(?P<name>[\w.:/-]+)"
_STRING = r'"(?:[^"\\]|\\.)*"'
_VALUE = rf'(?:{_STRING}|[\w.+-]+|(?P<nested>[\[{{](?:{_STRING}|[^"\[\]{{}}]|(?&nested))*[\]}}]))'
_MEMBERS = rf"(?:\s*,\s*{_STRING}\s*:\s*{_VALUE})*"
"""Further members of the object around the arguments; they are ignored."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Format of the calls of one family. Patterns are of the `regex` module, which can match
    partially.
    """

    begins: str = ""
    """Pattern after the opening marker of every call; a marker followed by anything else is prose.
    """
    opening: str | None = None
    """Text of a call up to its arguments, to force a call that no grammar can enforce."""
    before: str = ""
    """Text before the marker of a forced call."""
    head: str | None = None
    """Pattern of the name up to arguments that are JSON as they stand, so that they can be
    streamed.
    """
    closes: str = ""
    """Pattern after such arguments, before the closing marker."""
    inner: tuple[tuple[str, str], ...] = ()
    """Tags inside a call: while one is open, the call is incomplete, or the marker stands in a
    value.
    """
    written: str | None = None
    """Text of a call between the markers, for a grammar that enforces the schema of its function.
    """
    parameter: str | None = None
    """Text of one argument in `written`, where the arguments are no JSON object."""
    between: str = ""
    """Optional text between two calls."""
    together: bool = False
    """Several calls share one pair of markers."""
    short_ids: bool = False
    """Templates of this family refuse ids other than nine letters and digits."""


_NAMED_FIRST = CallFormat(
    r"\s*(?:[\[{]|[\w.:-]+\s*(?:<(?:longcat_)?arg_key>|</|\{|\n))",
    "{name}\n",
    inner=tuple(
        (f"<{tag}>", f"</{tag}>")
        for tag in ("arg_key", "arg_value", "longcat_arg_key", "longcat_arg_value")
    ),
)

CALL_FORMATS: Final[Mapping[str, CallFormat]] = {
    "function_gemma": CallFormat(r"\s*call:", "call:{name}{"),
    "gemma4": CallFormat(r"\s*call:", "call:{name}{"),
    "glm47": _NAMED_FIRST,
    "json_tools": CallFormat(
        r"\s*[\[{]",
        head=rf'\s*\{{\s*"name"\s*:\s*"{_NAME}"\s*,\s*"arguments"\s*:\s*(?=\{{)',
        closes=rf"{_MEMBERS}\s*\}}[\s}}\]]*",
        written='\n{"name": "{name}", "arguments": {arguments}}\n',
        between="\n",
    ),
    "kimi_k2": CallFormat(
        r"\s*(?:<\|tool_call_begin\|>|(?:functions\.)?[\w.-]+:\d)",
        head=r"\s*(?:<\|tool_call_begin\|>)?\s*(?P<id>(?:functions\.)?(?P<name>[\w.-]+):\d+)\s*"
        r"<\|tool_call_argument_begin\|>\s*(?=\{)",
        closes=r"\s*<\|tool_call_end\|>",
        written="<|tool_call_begin|>functions.{name}:{number}"
        "<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
        together=True,
    ),
    "kimi_k3": CallFormat(
        r"\s*<\|open\|>call",
        '<|open|>call tool="{name}" index="1"<|sep|>',
        inner=(("<|open|>call", "<|close|>call<|sep|>"),),
    ),
    "longcat": _NAMED_FIRST,
    "minicpm5": CallFormat(
        r"""\s*(?:"[^"<>\n]{1,64}"|'[^'<>\n]{1,64}'|[\w.:-]{1,64})\s*>""",
        '"{name}">',
        inner=(("<param ", "</param>"),),
    ),
    "minimax_m2": CallFormat(
        r"\s*<invoke name=",
        '\n<invoke name="{name}">\n',
        inner=(("<invoke name=", "</invoke>"), ("<parameter name=", "</parameter>")),
    ),
    "mistral": CallFormat(
        r"\s*(?:\[\s*\{|[\w.:/-]+\s*\[(?:CALL_ID|ARGS)\])",
        head=rf"\s*{_NAME}\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?\[ARGS\]\s*(?=\{{)",
        written="{name}[ARGS]{arguments}",
        short_ids=True,
    ),
    "muse_spark": CallFormat(
        r"\s*<atem:invoke",
        '\n<atem:invoke name="{name}">\n',
        inner=(("<atem:invoke ", ">"), ("<atem:parameter ", "</atem:parameter>")),
    ),
    "pythonic": CallFormat(r"\s*\[\s*[\w.]+\(", "[{name}("),
    "qwen3_coder": CallFormat(
        r"\s*<function=",
        inner=(("<function=", "</function>"), ("<parameter=", "</parameter>")),
        written="\n<function={name}>\n{arguments}</function>\n",
        parameter="<parameter={name}>\n{value}\n</parameter>\n",
        between="\n",
    ),
}
"""Every parser of mlx-lm but `laguna`, which is glm47's under another name."""

_LISTING: Final = replace(CALL_FORMATS["mistral"], written=None, opening="{name}[ARGS]")
"""Older Mistral models write a list of objects after the marker."""

_NUMBERED: Final = replace(CALL_FORMATS["mistral"], written="{name}[CALL_ID]{id}[ARGS]{arguments}")
"""Some Mistral models write the call's id after its name."""

_HARMONY: Final = CallFormat(
    r"[\w.:/-]+(?:\s+\w+)?\s*<\|",
    opening="{name}<|channel|>commentary json<|message|>",
    before=" ",
    head=rf"{_NAME}[^<{{]*(?:<\|(?:channel|constrain)\|>[^<{{]*)*<\|message\|>\s*(?=\{{)",
)
"""gpt-oss, for which mlx-lm has no parser: the head is enough."""


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """Tool-call markup of one model with the functions of one request.

    `tools` are as chat templates take them: `{"type": "function", "function": {"name": …}}`.
    """

    start: str
    end: str
    parse: Parse
    form: CallFormat
    tools: Sequence[Mapping[str, Any]] = ()
    begins: re.Pattern[str] = field(init=False)
    head: re.Pattern[str] | None = field(init=False, default=None)
    closes: re.Pattern[str] = field(init=False)
    ends: re.Pattern[str] = field(init=False)
    """`closes` with the closing marker."""
    follows: re.Pattern[str] | None = field(init=False, default=None)
    """`head` of a further call inside the same markers."""

    def __post_init__(self) -> None:
        form = self.form
        patterns = {
            "begins": form.begins,
            "closes": form.closes,
            "ends": rf"(?:{form.closes})\s*{standard_re.escape(self.end)}",
        }
        if form.head is not None:
            patterns |= {"head": form.head, "follows": rf"(?:{form.closes})?{form.head}"}
        for name, pattern in patterns.items():
            object.__setattr__(self, name, re.compile(pattern))

    def opening(self, name: str | None) -> str | None:
        """Return the text that begins a call of `name`, or up to the name; None if the format's
        opening is unknown.
        """
        if self.form.opening is None:
            return None
        inside, _, behind = self.form.opening.partition("{name}")
        text = self.form.before + self.start + inside
        return text if name is None else text + name + behind

    def new_id(self) -> str:
        """Return a new id for a call."""
        if self.form.short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def call_markup(
    tokenizer: TokenizerWrapper, tools: Sequence[Mapping[str, Any]]
) -> CallMarkup | None:
    """Return the markup of this model's tool calls; None if it has none."""
    if harmony.uses_harmony(tokenizer):
        return CallMarkup(harmony.CALL, "", _no_parser, _HARMONY, tools)
    if not tokenizer.has_tool_calling:
        return None
    name = tokenizer.tool_parser.__module__.rpartition(".")[2]
    start, end = str(tokenizer.tool_call_start), str(tokenizer.tool_call_end)
    form = CALL_FORMATS.get(name, CallFormat())
    if name == "mistral":
        template = str(tokenizer.chat_template)
        if "[CALL_ID]" in template:
            form = _NUMBERED
        elif "[ARGS]" not in template:
            form = _LISTING
    return CallMarkup(start, end, tokenizer.tool_parser, form, tools)


def _no_parser(text: str, tools: Sequence[Mapping[str, Any]]) -> Any:
    """Parse calls that are recognised by their heads alone: none."""
    raise ValueError("no call")
