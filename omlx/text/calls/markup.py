"""Choice of the tool-call format of one model, and its markup with the functions of one request.

The chat template decides: its texts show what the model was trained to write. For a template that
none of the families knows, mlx-lm's choice of a parser counts.
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
from typing import TYPE_CHECKING, Any, Final

import regex as re

from omlx.text import harmony
from omlx.text.calls import json_calls
from omlx.text.calls.families import (
    cohere,
    deepseek,
    deepseek_dsml,
    functionary,
    gemma,
    glm,
    hy3,
    json_lines,
    json_lists,
    json_tools,
    kimi_k2,
    kimi_k3,
    llama,
    minicpm5,
    minimax_m2,
    minimax_m3,
    mistral,
    muse_spark,
    pythonic,
    qwen3_coder,
    seed_oss,
    solar,
)
from omlx.text.calls.families import harmony as harmony_calls
from omlx.text.calls.format import CallFormat, Read, Tools
from omlx.text.calls.values import is_function
from omlx.text.stop_strings import overlap

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

FAMILIES: Final[Sequence[CallFormat]] = (
    minimax_m2.FORMAT,
    minimax_m3.FORMAT,
    glm.LONGCAT,
    glm.GLM_LINES,
    glm.GLM,
    qwen3_coder.FORMAT,
    kimi_k2.FORMAT,
    minicpm5.FORMAT,
    deepseek_dsml.V4,
    deepseek_dsml.V3_2,
    deepseek.R1,
    deepseek.V3_1,
    llama.FORMAT,
    cohere.COMMAND_R7B,
    cohere.COMMAND_R,
    seed_oss.FORMAT,
    functionary.V3_1,
    functionary.V3_2,
    hy3.FORMAT,
    solar.FORMAT,
    json_lines.GIGACHAT_3_1,
    json_lines.GIGACHAT_3,
    json_lines.MINIMAX_M1,
    json_lists.NEMOTRON_NANO_2,
    json_lists.APRIEL,
    json_lists.GRANITE_3,
    json_lists.FIREFUNCTION,
    json_lists.APERTUS,
    json_tools.FORMAT,
)
"""Families that are recognised by their chat template; the first match counts."""

_JSON: Final = re.compile(json_calls.BEGINS)
_ALPHABET: Final = string.ascii_letters + string.digits

PARSERS: Final[Mapping[str, CallFormat]] = {
    "function_gemma": gemma.FUNCTION_GEMMA,
    "gemma4": gemma.GEMMA_4,
    "glm47": glm.GLM,
    "json_tools": json_tools.FORMAT,
    "kimi_k2": kimi_k2.FORMAT,
    "kimi_k3": kimi_k3.FORMAT,
    "longcat": glm.LONGCAT,
    "minicpm5": minicpm5.FORMAT,
    "minimax_m2": minimax_m2.FORMAT,
    "mistral": mistral.FORMAT,
    "muse_spark": muse_spark.FORMAT,
    "pythonic": pythonic.FORMAT,
    "qwen3_coder": qwen3_coder.FORMAT,
}
"""By mlx-lm's parser: all of them but `laguna`, which is glm47's under another name."""


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """Tool-call format of one model with the functions of one request.

    `fallback` is mlx-lm's parser for calls in a form that `form` does not parse. `enforced` names
    the functions whose arguments a grammar enforces behind the opening marker: without it, their
    calls are text. Ids of calls derive from `salt`, so that the same output has the same ids.
    """

    form: CallFormat
    tools: Tools = ()
    fallback: Read | None = None
    enforced: frozenset[str] = frozenset()
    salt: str = ""
    patterns: CallPatterns = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", _patterns(self.form))

    @property
    def start(self) -> str:
        return self.form.start

    @property
    def end(self) -> str:
        return self.form.end

    def find(self, text: str) -> tuple[int, str]:
        """Return where the first marker of a call is, and the marker; the text's length and nothing
        if there is none.
        """
        found = self.patterns.starts.search(text)
        if found is None:
            return len(text), ""
        return found.start(), found[0]

    def overlap(self, text: str) -> int:
        """Return the length of the longest end of a text that may be the beginning of a marker."""
        return max(overlap(text, marker) for marker in (self.form.start, *self.form.bare))

    def parse(self, text: str) -> Any:
        """Parse a call that does not begin with the format's head. Raises `parser.PARSE_ERRORS`.

        A JSON object that names a function of the request is a call in every family.
        """
        if self.form.read is not json_calls.read and self.patterns.json.match(text):
            with suppress(ValueError):
                calls = json_calls.read(text, self.tools)
                if all(is_function(self.tools, call["name"]) for call in calls):
                    return calls
        read = self.form.read or self.fallback
        if read is None:
            raise ValueError("no call")
        return read(text, self.tools)

    def id_of(self, index: int) -> str:
        """Return the id of call number `index` of the output."""
        digest = blake2b(f"{self.salt} {index}".encode(), digest_size=12)
        if self.form.short_ids:
            return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest.digest()[:9])
        return f"call_{digest.hexdigest()}"


@dataclass(frozen=True, slots=True)
class CallPatterns:
    """Compiled patterns of a format."""

    starts: re.Pattern[str]
    """Texts at which a call may begin."""
    leading: re.Pattern[str] | None
    begins: re.Pattern[str]
    head: re.Pattern[str] | None
    closes: re.Pattern[str]
    ends: re.Pattern[str]
    """`closes` with the closing marker."""
    follows: re.Pattern[str] | None
    """`head` of a further call inside the same markers."""
    json: re.Pattern[str]
    """The beginning of a call that is a JSON object, as models of any family write."""
    further: re.Pattern[str] | None
    """The same behind a call, in families that write calls otherwise."""


@cache
def _patterns(form: CallFormat) -> CallPatterns:
    head = follows = further = None
    begins = form.begins
    if form.messages is None:
        begins = rf"(?:{begins})|(?:\s*```\w*)?{json_calls.BEGINS}"
    if form.messages is None and form.read is not json_calls.read:
        further = re.compile(rf"\s*[,;]?(?={json_calls.BEGINS})")
    starts = "|".join(re.escape(marker) for marker in (form.start, *form.bare))
    if form.head is not None:
        head = re.compile(form.head)
    # Elsewhere each call has the opening marker, and a name alone is the beginning of a text.
    if form.head is not None and form.messages is None and (form.end or form.read):
        follows = re.compile(rf"(?:{form.closes})?\s*,?{form.follows or form.head}")
    return CallPatterns(
        re.compile(starts),
        re.compile(form.leading) if form.leading else None,
        re.compile(begins),
        head,
        re.compile(form.closes),
        re.compile(rf"(?:{form.closes})?\s*{re.escape(form.end)}"),
        follows,
        _JSON,
        further,
    )


def call_markup(
    tokenizer: TokenizerWrapper, tools: Tools, strict: frozenset[str] = frozenset(), salt: str = ""
) -> CallMarkup | None:
    """Return the markup of this model's tool calls; None if it has none. `strict` names functions
    whose arguments must follow their schema; ids of calls derive from `salt`.
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


def call_format(tokenizer: TokenizerWrapper) -> CallFormat | None:
    """Return the format of this model's tool calls; None if it has none."""
    template = str(tokenizer.chat_template or _python_template(tokenizer))
    if harmony.uses_harmony(tokenizer):
        return harmony_calls.FORMAT
    for form in FAMILIES:
        if any(all(text in template for text in texts) for texts in form.templates):
            return form
    if not tokenizer.has_tool_calling:
        return None
    name = tokenizer.tool_parser.__module__.rpartition(".")[2]
    if name == "mistral":
        return _mistral(template)
    if name in PARSERS:
        return PARSERS[name]
    return CallFormat(start=str(tokenizer.tool_call_start), end=str(tokenizer.tool_call_end))


def _python_template(tokenizer: TokenizerWrapper) -> str:
    """Return the source of mlx-lm's Python template that a checkpoint asks for; empty if none."""
    kind = tokenizer.init_kwargs.get("chat_template_type")
    module = sys.modules.get(f"mlx_lm.chat_templates.{kind}")
    return inspect.getsource(module) if module is not None else ""


def _mistral(template: str) -> CallFormat:
    if "[CALL_ID]" in template:
        return mistral.NUMBERED
    if "[ARGS]" in template:
        return mistral.FORMAT
    return mistral.LISTING
