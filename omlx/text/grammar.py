"""From the form that an answer must have to a mask of tokens, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from omlx.errors import BadRequest
from omlx.text import call_grammar, harmony
from omlx.text.call_markup import call_markup
from omlx.text.grammar_mask import Before, Call, Free, GrammarMask, Held, Marker, Place, Thought
from omlx.text.json_spelling import LENIENT, SPACING
from omlx.text.prune_nonterminating_schema import prune_nonterminating
from omlx.text.tools import ToolUse

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_LIMITS: Final = LLParserLimits(verbose_errors=False)


class GrammarKind(StrEnum):
    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What a request demands. `text` is a JSON schema, a regular expression, a JSON list of texts, or a grammar in
    Lark's form or llama.cpp's; `param` the field it came from. A `lenient` schema may hold keywords that are not
    enforced.
    """

    kind: GrammarKind
    text: str
    param: str
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """What binds a text, made ready for one model; `param` is the field that asked for it. The `matcher` stands at the
    beginning of the text and is only copied."""

    param: str
    matcher: LLMatcher


@dataclass(frozen=True, slots=True)
class Preamble:
    """What may come before the answer, or in its place: `thinking` (the prompt has opened a thought), `may_think` (the
    model may open one), `may_call`, where `call` binds what is behind the marker of a call. `begun` is the part of the
    answer that stands in the prompt."""

    thinking: bool = False
    may_think: bool = False
    may_call: bool = False
    calls: CompiledGrammar | None = None
    answer_prefix: str = ""


class GrammarCompiler:
    """Compiles forms for one model. What llguidance must know of the tokenizer takes a second, at the first use."""

    def __init__(self, tokenizer: TokenizerWrapper, stop_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = sorted(stop_ids)

    def compile(self, form: StructuredOutput) -> CompiledGrammar:
        """Raises BadRequest for a form that cannot be enforced, or that nothing has, saying why."""
        try:
            return CompiledGrammar(form.param, self._matcher(_source(form)))
        except ValueError as error:
            detail = str(error).strip()
            raise BadRequest(
                "format.invalid", param=form.param, field=form.param, detail=detail
            ) from error

    def compile_tool_calls(self, use: ToolUse) -> CompiledGrammar | None:
        """What binds the calls of a request: the whole answer where one is forced, else what follows the marker of a
        call. None where the model is free, or writes calls in a form that has no grammar.

        Raises BadRequest, naming the function, for a schema that cannot be enforced.
        """
        form = call_markup(self._tokenizer, use.functions)
        if form is None or form.form.written is None or not (use.forced or use.strict):
            return None
        source = call_grammar.answer if use.forced else call_grammar.call
        if (
            form.form.parameter is not None
        ):  # what is not JSON is nothing that the grammar would complain of
            for function in use.allowed:
                self._check(function, use)
        added = self._tokenizer._tokenizer.get_added_vocab()
        try:
            return CompiledGrammar("tools", self._matcher(source(form, use, added)))
        except ValueError as error:
            for function in use.allowed:
                self._check(function, use)
            names = ", ".join(function["name"] for function in use.allowed)[:200]
            raise BadRequest(
                "tools.schema", param="tools", name=names, detail=str(error).strip()
            ) from error

    def mask(self, answer: CompiledGrammar | None, preamble: Preamble) -> GrammarMask:
        """A mask of its own for one choice; without an `answer`, only calls are bound.

        Raises BadRequest if what has begun does not have the form.
        """
        if answer is None:
            return GrammarMask(self._free(preamble), self._without_stops)
        held = Held(answer.matcher.deep_copy())
        begun = self._known.tokenize_str(preamble.answer_prefix)
        if held.matcher.try_consume_tokens(begun) < len(begun):
            raise BadRequest("format.begun", param=answer.param, field=answer.param)
        return GrammarMask(self._before(held, preamble), self._without_stops)

    def _matcher(self, source: str) -> LLMatcher:
        """Raises ValueError, also where nothing may be said at the beginning, or behind all that must come first."""
        matcher = LLMatcher(self._known, source, log_level=0, limits=_LIMITS)
        ahead = matcher.deep_copy()
        ahead.consume_tokens(ahead.compute_ff_tokens())
        ahead.compute_bitmask()
        if ahead.is_error():
            complaint = ahead.get_error().removesuffix("<non-verbose/>").strip()
            raise ValueError(
                "nothing has this form" if complaint == "NoExtensionBias" else complaint
            )
        return matcher

    def _check(self, function: Mapping[str, Any], use: ToolUse) -> None:
        """Raises BadRequest, naming the function, if its schema alone cannot be enforced."""
        try:
            self._matcher(
                LLMatcher.grammar_from_json_schema(dict(call_grammar.arguments(function, use)))
            )
        except ValueError as error:
            detail = str(error).strip()
            raise BadRequest(
                "tools.schema", param="tools", name=function["name"], detail=detail
            ) from error

    def _free(self, preamble: Preamble) -> Place:
        free = Free(self._call(preamble))
        if preamble.thinking:
            return self._thought(free)
        if preamble.may_think and self._thought_ids is not None:
            return Free(free.call, Marker(self._thought_ids[0], self._thought(free)))
        return free

    def _before(self, held: Held, preamble: Preamble) -> Place:
        call = self._call(preamble)
        markers = (Marker(self._call_ids, call or Free()),) if preamble.may_call else ()
        if preamble.thinking:
            return self._thought(self._behind_thought(held, markers))
        if not preamble.may_think or self._thought_ids is None:
            return Before(held, markers)
        thought = self._thought(self._behind_thought(held, markers))
        return Before(held, (*markers, Marker(self._thought_ids[0], thought)))

    def _call(self, preamble: Preamble) -> Call | None:
        return Call(self._call_ids, preamble.calls.matcher) if preamble.calls is not None else None

    def _thought(self, behind: Place) -> Thought:
        assert self._thought_ids is not None
        return Thought(self._thought_ids[1], behind)

    def _behind_thought(self, held: Held, markers: tuple[Marker, ...]) -> Before:
        """An answer with up to two line breaks before it, as models write them, in one token or in two."""
        answer = Before(held, markers)
        one, two = (tuple(self._known.tokenize_str(text)) for text in ("\n", "\n\n"))
        both = (Marker(two, answer),) if len(two) == 1 else ()
        return Before(
            held, (*markers, *both, Marker(one, Before(held, (*markers, Marker(one, answer)))))
        )

    @cached_property
    def _thought_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """What opens a thought and what closes it, if the model has any."""
        if harmony.uses_harmony(self._tokenizer):
            opens, closes = (
                tuple(self._known.tokenize_str(each, parse_special=True))
                for each in harmony.THOUGHT
            )
            return opens, closes
        if not self._tokenizer.has_thinking:
            return None
        return tuple(self._tokenizer.think_start_tokens), tuple(self._tokenizer.think_end_tokens)

    @cached_property
    def _call_ids(self) -> tuple[int, ...]:
        form = call_markup(self._tokenizer, ())
        assert form is not None
        return tuple(self._known.tokenize_str(form.start, parse_special=True))

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


def _source(form: StructuredOutput) -> str:
    """The form in llguidance's language. Raises ValueError."""
    match form.kind:
        case GrammarKind.JSON:
            overrides = LENIENT if form.lenient else None
            schema = (
                "{}" if form.text.strip() == "true" else form.text
            )  # options go with objects only
            if "$ref" in schema:
                schema = json.dumps(prune_nonterminating(json.loads(schema)))
            return LLMatcher.grammar_from_json_schema(schema, defaults=SPACING, overrides=overrides)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(form.text)
        case GrammarKind.CHOICE:
            texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(form.text))
            return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
        case GrammarKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(_lark(form.text))


def _lark(grammar: str) -> str:
    """Raises ValueError."""
    try:
        return any_to_lark(grammar)
    except (
        Exception
    ) as error:  # of any type: the converter has none of its own for most of what it refuses
        raise ValueError(str(error) or type(error).__name__) from error
