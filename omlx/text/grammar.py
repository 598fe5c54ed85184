"""From the form that an answer must have to a mask of tokens, by llguidance.

White space in JSON is fixed to what Python's `json.dumps` writes, unless the schema says otherwise (`x-guidance`): one
spelling leaves more tokens that must come, and no room for a model to go on with blanks for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from omlx.errors import BadRequest
from omlx.text.answer_mask import AnswerMask, Before, Marker, Open, Place, Thought

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions
    from mlx_lm.tokenizer_utils import TokenizerWrapper

SPACING: Final[JsonCompileOptions] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
LENIENT: Final[JsonCompileOptions] = {"lenient": True}

_LIMITS: Final = LLParserLimits(verbose_errors=False)


class Kind(StrEnum):
    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What a request demands. `text` is a JSON schema, a regular expression, a JSON list of texts, or a grammar in
    Lark's form or llama.cpp's; `param` the field it came from. A `lenient` schema may hold keywords that are not
    enforced.
    """

    kind: Kind
    text: str
    param: str
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class Lead:
    """What may come before the answer, or in its place: `thinking` (the prompt has opened a thought), `may_think` (the
    model may open one), `may_call`. `begun` is the part of the answer that stands in the prompt."""

    thinking: bool = False
    may_think: bool = False
    may_call: bool = False
    begun: str = ""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A form made ready for one model. The `matcher` stands at the beginning of an answer and is only copied."""

    form: AnswerForm
    matcher: LLMatcher


class Grammars:
    """Compiles forms for one model. What llguidance must know of the tokenizer takes a second, at the first use."""

    def __init__(self, tokenizer: TokenizerWrapper, stop_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = sorted(stop_ids)

    def compile(self, form: AnswerForm) -> Grammar:
        """Raises BadRequest for a form that cannot be enforced, saying why."""
        try:
            matcher = LLMatcher(self._known, _source(form), log_level=0, limits=_LIMITS)
        except (ValueError, GbnfToLarkError) as error:
            raise _refused(form, str(error)) from error
        if matcher.is_error():
            raise _refused(form, matcher.get_error())
        return Grammar(form, matcher)

    def mask(self, grammar: Grammar, lead: Lead) -> AnswerMask:
        """A mask of its own for one choice. Raises BadRequest if what has begun does not have the form."""
        own, param = grammar.matcher.deep_copy(), grammar.form.param
        begun = self._known.tokenize_str(lead.begun)
        if own.try_consume_tokens(begun) < len(begun):
            raise BadRequest("format.begun", param=param, field=param)
        return AnswerMask(own, self._start(lead), self._without_stops)

    def _start(self, lead: Lead) -> Place:
        tokenizer, known = self._tokenizer, self._known
        markers: tuple[Marker, ...] = ()
        if lead.may_call:
            markers = (Marker(tuple(known.tokenize_str(tokenizer.tool_call_start, parse_special=True)), Open.CALL),)
        if not lead.thinking and not (lead.may_think and tokenizer.has_thinking):
            return Before(markers)
        thought = Thought(tuple(tokenizer.think_end_tokens), self._behind_thought(markers))
        return thought if lead.thinking else Before((*markers, Marker(tuple(tokenizer.think_start_tokens), thought)))

    def _behind_thought(self, markers: tuple[Marker, ...]) -> Before:
        """An answer with up to two line breaks before it, as models write them, in one token or in two."""
        answer = Before(markers)
        one, two = (tuple(self._known.tokenize_str(text)) for text in ("\n", "\n\n"))
        both = (Marker(two, answer),) if len(two) == 1 else ()
        return Before((*markers, *both, Marker(one, Before((*markers, Marker(one, answer))))))

    @cached_property
    def _known(self) -> LLTokenizer:
        from llguidance import hf  # noqa: PLC0415 — brings in transformers: slow, and there with the first tokenizer
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

        inner = self._tokenizer._tokenizer
        if not isinstance(inner, PreTrainedTokenizerFast):
            raise BadRequest("format.tokenizer")
        return hf.from_tokenizer(inner, eos_token=self._stop_ids or None)

    @cached_property
    def _without_stops(self) -> bytes:
        """All ids but those that end an output."""
        every = bytearray(b"\xff" * ((self._known.vocab_size + 7) // 8))
        for token in self._stop_ids:
            every[token // 8] &= ~(1 << token % 8)
        return bytes(every)


def _source(form: AnswerForm) -> str:
    """The form in llguidance's language. Raises ValueError or GbnfToLarkError."""
    match form.kind:
        case Kind.JSON:
            overrides = LENIENT if form.lenient else None
            schema = "{}" if form.text.strip() == "true" else form.text  # options go with objects only
            return LLMatcher.grammar_from_json_schema(schema, defaults=SPACING, overrides=overrides)
        case Kind.REGEX:
            return LLMatcher.grammar_from_regex(form.text)
        case Kind.CHOICE:
            texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(form.text))
            return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
        case Kind.GRAMMAR:
            return LLMatcher.grammar_from_lark(any_to_lark(form.text))


def _refused(form: AnswerForm, detail: str) -> BadRequest:
    return BadRequest("format.invalid", param=form.param, field=form.param, detail=detail.strip())
