"""How each family of models writes a tool call: what mlx-lm's parsers do not say of the formats that they parse.

mlx-lm chooses the parser by the chat template and gives the markers around a call. What is added here, by the name of
the parser's module:

    begins    what stands behind the opening marker of every call; a marker followed by anything else is prose
    head      the name and what comes before the arguments, where those are JSON as it stands: they can be sent on as
              they come
    closes    what follows such arguments inside the markers
    inner     tags that a call closes again: with one of them open it was cut off, or the marker stands in a value
    written   a call as the model writes it between the markers, so that a grammar can hold it to the schema of its
              function
    parameter one argument in such a call, where the arguments are no JSON object
    between   what may stand between two calls
    together  several calls share one pair of markers
    opening   a call up to its arguments, to make a model begin one that no grammar can hold; `before` the marker
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
"""What else stands in the object around arguments; nobody needs it."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One row of the table. Patterns are of the `regex` module, which can tell "not yet" from "no"."""

    begins: str = ""
    opening: str | None = None
    before: str = ""
    head: str | None = None
    closes: str = ""
    inner: tuple[tuple[str, str], ...] = ()
    written: str | None = None
    parameter: str | None = None
    between: str = ""
    together: bool = False
    short_ids: bool = False


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
        written="<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
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
"""Older models of Mistral's write a list of objects behind the marker."""

_NUMBERED: Final = replace(CALL_FORMATS["mistral"], written="{name}[CALL_ID]{id}[ARGS]{arguments}")
"""Some write the call's id behind its name."""


_HARMONY: Final = CallFormat(
    r"[\w.:/-]+(?:\s+\w+)?\s*<\|",
    opening="{name}<|channel|>commentary json<|message|>",
    before=" ",
    head=rf"{_NAME}[^<{{]*(?:<\|(?:channel|constrain)\|>[^<{{]*)*<\|message\|>\s*(?=\{{)",
)
"""No parser of mlx-lm's: nothing but the head is needed."""


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """The tool calls of one model, and the functions that a request lets it call. `tools` are as templates know them:
    `{"type": "function", "function": {"name": …}}`."""

    start: str
    end: str
    parse: Parse
    form: CallFormat
    tools: Sequence[Mapping[str, Any]] = ()
    begins: re.Pattern[str] = field(init=False)
    head: re.Pattern[str] | None = field(init=False)
    closes: re.Pattern[str] = field(init=False)
    ends: re.Pattern[str] = field(init=False)
    follows: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        form = self.form
        patterns = {
            "begins": re.compile(form.begins),
            "head": re.compile(form.head) if form.head is not None else None,
            "closes": re.compile(form.closes),
            "ends": re.compile(rf"(?:{form.closes})\s*{standard_re.escape(self.end)}"),
            "follows": re.compile(rf"(?:{form.closes})?{form.head}")
            if form.head is not None
            else None,
        }
        for name, pattern in patterns.items():
            object.__setattr__(self, name, pattern)

    def opening(self, name: str | None) -> str | None:
        """The text that begins a call of `name`, or of whichever function the model chooses; None if unknown."""
        if self.form.opening is None:
            return None
        inside, _, behind = self.form.opening.partition("{name}")
        return self.form.before + self.start + inside + (name + behind if name is not None else "")

    def new_id(self) -> str:
        """Templates of one family refuse ids that are not nine letters and digits."""
        if self.form.short_ids:
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def call_markup(
    tokenizer: TokenizerWrapper, tools: Sequence[Mapping[str, Any]]
) -> CallMarkup | None:
    """How this model calls `tools`; None where nobody knows."""
    if harmony.uses_harmony(tokenizer):
        return CallMarkup(harmony.CALL, "", _nothing, _HARMONY, tools)
    if not tokenizer.has_tool_calling:
        return None
    name = tokenizer.tool_parser.__module__.rpartition(".")[2]
    start, end = str(tokenizer.tool_call_start), str(tokenizer.tool_call_end)
    form = CALL_FORMATS.get(name, CallFormat())
    if name == "mistral":
        template = str(tokenizer.chat_template)
        form = _NUMBERED if "[CALL_ID]" in template else form if "[ARGS]" in template else _LISTING
    return CallMarkup(start, end, tokenizer.tool_parser, form, tools)


def _nothing(text: str, tools: Sequence[Mapping[str, Any]]) -> Any:
    """A parser for calls that are known by their heads alone."""
    raise ValueError("no call")
