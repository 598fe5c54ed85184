"""Choice of a model's tool-call format, and its markup with the functions of a request.

The chat template decides: its texts show the format of the model's training. For other templates,
mlx-lm's choice of a parser counts. Past calls are written in the same format for templates without
calls.
"""

from __future__ import annotations

import inspect
import string
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from typing import Any, Final

import regex as re

from omlx.text import harmony
from omlx.text.calls import json_formats, tag_formats
from omlx.text.calls.arguments import filled
from omlx.text.calls.elements import MINIMAX_M3
from omlx.text.calls.format import CallFormat, Read, Tools
from omlx.text.calls.gemma import FUNCTION_GEMMA, GEMMA_4
from omlx.text.calls.lfm2 import LFM2
from omlx.text.calls.values import is_function
from omlx.text.filters import longest_overlap
from omlx.text.tokens import Tokenizer

FAMILIES: Final[Sequence[CallFormat]] = (
    tag_formats.MINIMAX_M2,
    MINIMAX_M3,
    tag_formats.LONGCAT,
    tag_formats.HY3_PREVIEW,
    tag_formats.HY4,
    tag_formats.K2_HORIZON,
    tag_formats.GLM_LINES,
    tag_formats.GLM,
    tag_formats.QWEN3_CODER,
    json_formats.KIMI_K2,
    tag_formats.MINICPM5,
    tag_formats.DEEPSEEK_4,
    tag_formats.DEEPSEEK_3_2,
    json_formats.DEEPSEEK_R1,
    json_formats.DEEPSEEK_3_1,
    json_formats.LLAMA_3,
    json_formats.COMMAND_R7B,
    json_formats.COMMAND_R,
    tag_formats.SEED_OSS,
    json_formats.FUNCTIONARY_3_1,
    json_formats.FUNCTIONARY_3_2,
    tag_formats.HY3,
    json_formats.SOLAR,
    json_formats.GIGACHAT_3_1,
    json_formats.GIGACHAT_3,
    json_formats.MINIMAX_M1,
    json_formats.NEMOTRON_NANO_2,
    json_formats.APRIEL,
    json_formats.GRANITE_3,
    json_formats.INKLING,
    json_formats.FIREFUNCTION,
    json_formats.APERTUS,
    json_formats.JSON_TOOLS,
    json_formats.MISTRAL_NUMBERED,
    json_formats.MISTRAL,
    json_formats.MISTRAL_LISTING,
    tag_formats.KIMI_K3,
    tag_formats.MUSE_SPARK,
    GEMMA_4,
    FUNCTION_GEMMA,
    LFM2,
)
"""All families but gpt-oss; the first whose texts are in the chat template counts.

If none is, mlx-lm's parser decides.
"""

PARSERS: Final[Mapping[str, CallFormat]] = {form.parser: form for form in FAMILIES if form.parser}
"""Formats by mlx-lm's parser: all but `laguna`, which is glm47's under another name."""

NOTHING: Final = "(?!)"
JSON_CALL: Final = re.compile(json_formats.BEGINS)
"""Pattern of a call as a JSON object, which models of any family write."""
_ALPHABET: Final = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """Tool-call format of a model with the functions of a request."""

    form: CallFormat
    tools: Tools = ()
    fallback: Read | None = None  # mlx-lm's parser for calls that `form` does not parse
    # Functions whose arguments a grammar enforces behind the opening marker: without the marker,
    # their calls are text.
    enforced: frozenset[str] = frozenset()
    salt: str = ""  # seed of call ids: the same output has the same ids
    patterns: CallPatterns = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", _patterns(self.form))

    def find(self, text: str) -> tuple[int, str]:
        """Return the index of the first marker of a call, and the marker.

        The text's length and "" if there is none.
        """
        found = self.patterns.starts.search(text)
        if found is None:
            return len(text), ""
        return found.start(), found[0]

    def overlap(self, text: str) -> int:
        """Return the length of the longest end of a text that may begin a marker."""
        return longest_overlap(text, (self.form.start, *self.form.bare))

    def may_call(self, name: str) -> bool:
        return is_function(self.tools, name) and name not in self.enforced

    def parse(self, text: str) -> Any:
        """Parse a call that does not begin with the format's head. Raises `readers.PARSE_ERRORS`.

        A JSON object that names a function of the request is a call in every family.
        """
        if self.form.read is not json_formats.read_calls and JSON_CALL.match(text):
            with suppress(ValueError):
                calls = json_formats.read_calls(text, self.tools)
                if all(is_function(self.tools, call["name"]) for call in calls):
                    return calls
        read = self.form.read or self.fallback
        if read is None:
            raise ValueError("no call")
        return read(text, self.tools)

    def id_of(self, index: int) -> str:
        digest = blake2b(f"{self.salt} {index}".encode(), digest_size=12)
        if self.form.short_ids:
            return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest.digest()[:9])
        return f"call_{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class CallPatterns:
    starts: re.Pattern[str]  # texts at which a call may begin
    leading: re.Pattern[str]
    begins: re.Pattern[str]
    head: re.Pattern[str]
    closes: re.Pattern[str]
    ends: re.Pattern[str]  # `closes` with the closing marker
    follows: re.Pattern[str]  # `head` of a further call inside the same markers
    further: re.Pattern[str]
    """Pattern before a JSON object behind a call, in families that write calls otherwise."""


@cache
def _patterns(form: CallFormat) -> CallPatterns:
    begins, follows, further = form.begins, NOTHING, NOTHING
    if form.messages is None:
        begins = rf"(?:{begins})|(?:\s*```\w*)?{json_formats.BEGINS}"
        if form.read is not json_formats.read_calls:
            further = rf"\s*[,;]?(?={json_formats.BEGINS})"
        # In other families each call has the opening marker, and a name alone begins a text.
        if form.head is not None and (form.end or form.read):
            follows = rf"(?:{form.closes})?\s*,?{form.follows or form.head}"
    return CallPatterns(
        starts=re.compile("|".join(re.escape(marker) for marker in (form.start, *form.bare))),
        leading=re.compile(form.leading or NOTHING),
        begins=re.compile(begins),
        head=re.compile(form.head or NOTHING),
        closes=re.compile(form.closes),
        ends=re.compile(rf"(?:{form.closes})?\s*{re.escape(form.end)}"),
        follows=re.compile(follows),
        further=re.compile(further),
    )


def call_markup(
    tokenizer: Tokenizer, tools: Tools, strict: frozenset[str] = frozenset(), salt: str = ""
) -> CallMarkup | None:
    """Return the markup of this model's tool calls; None for a model without tool calls.

    `strict` names functions whose arguments must follow their schema; ids of calls derive from
    `salt`.
    """
    form = call_format(tokenizer)
    if form is None:
        return None
    fallback = tokenizer.tool_parser
    if fallback is not None and tokenizer.tool_call_start != form.start:
        fallback = None
    if form.written is None:
        strict = frozenset()
    return CallMarkup(form, tools, fallback, strict, salt)


def call_format(tokenizer: Tokenizer) -> CallFormat | None:
    template = str(tokenizer.chat_template or _python_template(tokenizer))
    if harmony.uses_harmony(tokenizer):
        return json_formats.HARMONY
    for form in FAMILIES:
        if any(all(text in template for text in texts) for texts in form.templates):
            return form
    if not tokenizer.has_tool_calling:
        return None
    start, end = str(tokenizer.tool_call_start), str(tokenizer.tool_call_end)
    name = tokenizer.tool_parser.__module__.rpartition(".")[2]
    return PARSERS.get(name) or CallFormat(start=start, end=end)


def _python_template(tokenizer: Tokenizer) -> str:
    kind = tokenizer.init_kwargs.get("chat_template_type")
    module = sys.modules.get(f"mlx_lm.chat_templates.{kind}")
    return inspect.getsource(module) if module is not None else ""


_NO_FORMAT: Final = CallFormat(
    start="", end="", between="\n", written='{"name": "{name}", "arguments": {arguments}}'
)
"""Format of calls in a family without a known format."""


def write_calls(tokenizer: Tokenizer, calls: Sequence[Mapping[str, Any]]) -> str:
    """Write calls between the markers of the model's family, as JSON for an unknown format."""
    form = call_format(tokenizer) or _NO_FORMAT
    bodies = [write_call(form, call, number) for number, call in enumerate(calls)]
    if form.together:
        bodies = [form.separator.join(bodies)]
    before, behind = form.section
    start = form.before + form.start if form.marked else ""
    bodies = [f"{start}{before}{body}{behind}{form.end}" for body in bodies]
    return (form.between or "\n").join(bodies)


def write_call(form: CallFormat, call: Mapping[str, Any], number: int) -> str:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = form.syntax.text(arguments)
    values = {"name": function["name"], "number": str(number), "id": call["id"]}
    return filled(form.written or str(_NO_FORMAT.written), values | {"arguments": arguments})
