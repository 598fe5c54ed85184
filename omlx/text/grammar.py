"""Structured output: a request's format compiled to a token mask, by llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from threading import Lock
from typing import Final, Generic, TypeVar

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from omlx.errors import BadRequest, Reason
from omlx.machine import trim
from omlx.text.calls.arguments import JSON, LENIENT, SPACING
from omlx.text.calls.grammar import CallGrammar, arguments_schema
from omlx.text.calls.markup import CallMarkup, call_markup
from omlx.text.mask import (
    AnswerStart,
    CallStart,
    Constrained,
    Free,
    GrammarMask,
    GrammarTokens,
    Marker,
    State,
    Thought,
)
from omlx.text.reasoning import channel_markers
from omlx.text.schema import Schema
from omlx.text.schema_limits import (
    TIMES,
    check_depth,
    check_integers,
    prune_nonterminating,
    relax,
    without_leap_seconds,
)
from omlx.text.tokens import Tokenizer
from omlx.text.tools import ToolUse

T = TypeVar("T")

CACHE_SIZE: Final = 32
MAX_RULES: Final = 1_000
"""Rules — llguidance compiles by recursion: its stack overflows at some 2,000 rules in a chain."""
_RULE: Final = re.compile(":+")
"""Separator in each rule (Lark, llama.cpp) and in each reference of an embedded schema."""
_SHOWN: Final = 500  # characters of a warning's detail


class GrammarKind(StrEnum):
    JSON = "json"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """Structured output that a request demands in its field `param`."""

    kind: GrammarKind
    text: str  # JSON schema, regular expression, JSON list of texts, or grammar (Lark, llama.cpp)
    param: str
    strict: bool = False  # enforce the schema entirely, not only as far as possible


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """Grammar compiled for a model; `param` is the request field."""

    param: str
    matcher: LLMatcher  # only copied
    warnings: tuple[Reason, ...] = ()  # parts of a schema that are not enforced
    whole: LLMatcher | None = None
    """Matcher of a whole answer if a call may occur without a marker.

    Includes the texts and the reasoning beside the call, if these are messages of their own.
    """


@dataclass(frozen=True, slots=True)
class Preamble:
    """Texts that may precede or replace a constrained answer."""

    thinking: bool = False  # the prompt has opened reasoning
    may_think: bool = False  # the model may open reasoning
    may_call: bool = False  # the model may call a tool
    answer_prefix: str = ""  # part of the answer in the prompt


class GrammarCompiler:
    """Compiler of structured output for a model.

    The first use builds llguidance's tokenizer, which takes a second.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = GrammarTokens(tokenizer, stop_ids)
        self._cache: GrammarCache[CompiledGrammar] = GrammarCache()

    def compile(self, output: StructuredOutput) -> CompiledGrammar:
        """Compile a grammar. Raises BadRequest if the grammar cannot be enforced or is empty."""
        return self._cache.get(repr(output), lambda: self._compile(output))

    def _compile(self, output: StructuredOutput) -> CompiledGrammar:
        removed: list[str] = []
        try:
            try:
                matcher = self._tokens.matcher(_source(output))
            except ValueError:
                if output.kind is not GrammarKind.JSON or output.strict:
                    raise
                schema, removed = relax(json.loads(output.text), self._pattern_error)
                if not removed:
                    raise
                matcher = self._tokens.matcher(_source(replace(output, text=json.dumps(schema))))
            return _compiled(output.param, matcher, removed)
        except ValueError as error:
            param, detail = output.param, str(error).strip()
            raise BadRequest("format.invalid", param=param, field=param, detail=detail) from error

    def compile_tool_calls(self, use: ToolUse) -> CompiledGrammar | None:
        """Compile the grammar of a request's calls.

        Covers the whole answer if a call is forced, else the inside of a call. Returns None if
        calls are unconstrained, or in a format without a grammar. Raises BadRequest, naming the
        function, for a schema that cannot be enforced.
        """
        markup = call_markup(self._tokenizer, use.functions)
        if markup is None or markup.form.written is None or not (use.forced or use.strict):
            return None
        try:
            return self._cache.get(repr(use), lambda: self._compile_tool_calls(use, markup))
        except RecursionError as error:
            raise _bad_schema(_names(use), error) from error

    def _compile_tool_calls(self, use: ToolUse, markup: CallMarkup) -> CompiledGrammar:
        try:
            return self._compiled_calls(use, markup, ())
        except BadRequest:
            use, removed = self._relaxed_tools(use)
            if not removed:
                raise
            return self._compiled_calls(use, markup, removed)

    def _compiled_calls(
        self, use: ToolUse, markup: CallMarkup, removed: Sequence[str]
    ) -> CompiledGrammar:
        if markup.form.syntax is not JSON:
            # Schemas that are not JSON in the grammar fail silently.
            removed = [*removed, *self._check_schemas(use)]
        grammar = CallGrammar(markup, use, self._tokens.added)
        try:
            matcher = self._tokens.matcher(grammar.forced() if use.forced else grammar.inside())
            compiled = _compiled("tools", matcher, [*removed, *dict.fromkeys(grammar.unenforced)])
            answer = grammar.answer()
            if answer is None:
                return compiled
            return replace(compiled, whole=self._tokens.matcher(answer))
        except ValueError as error:
            self._check_schemas(use)
            raise _bad_schema(_names(use), error) from error

    def mask(
        self,
        answer: CompiledGrammar | None,
        preamble: Preamble,
        calls: CompiledGrammar | None = None,
    ) -> GrammarMask:
        """Return a mask for a choice; without an `answer`, only calls are constrained.

        `calls` constrains the text after a call's marker. Raises BadRequest if the answer's prefix
        does not follow the grammar.
        """
        if answer is None:
            return GrammarMask(self._free(preamble, calls), self._tokens.without_stops)
        if answer.whole is not None and preamble.may_think:
            whole = Constrained(answer.whole.deep_copy())
            return GrammarMask(whole, self._tokens.without_stops)
        constrained = Constrained(answer.matcher.deep_copy())
        prefix = self._tokens.known.tokenize_str(preamble.answer_prefix)
        if constrained.matcher.try_consume_tokens(prefix) < len(prefix):
            raise BadRequest("format.begun", param=answer.param, field=answer.param)
        return GrammarMask(self._start(constrained, preamble, calls), self._tokens.without_stops)

    def _relaxed_tools(self, use: ToolUse) -> tuple[ToolUse, list[str]]:
        """Reduce schemas to enforceable parts, unless strict; return the removed parts too."""
        functions, removed = [], []
        for tool in use.functions:
            function = tool["function"]
            if function["name"] not in use.strict:
                with suppress(ValueError):
                    schema, parts = relax(function.get("parameters", {}), self._pattern_error)
                    tool = {**tool, "function": {**function, "parameters": schema}}
                    removed += [f"{function['name']}: {part}" for part in parts]
            functions.append(tool)
        return replace(use, functions=tuple(functions)), removed

    def _pattern_error(self, pattern: str) -> str | None:
        """Return the reason why the grammar cannot express a pattern.

        None if the grammar can, or if the pattern is malformed.
        """
        schema = {"type": "string", "pattern": pattern}
        try:
            self._tokens.matcher(LLMatcher.grammar_from_json_schema(schema))
        except ValueError as error:
            detail = str(error).strip().splitlines()[-1].removeprefix("error: ")
            if "not supported" in detail or _is_regex(pattern):
                return detail
        return None

    def _check_schemas(self, use: ToolUse) -> list[str]:
        """Return the parts of the schemas that are not enforced.

        Raises BadRequest, naming the function, if its schema alone cannot be enforced.
        """
        ignored: list[str] = []
        for function in use.allowed:
            schema: Schema = arguments_schema(function, use)
            try:
                matcher = self._tokens.matcher(LLMatcher.grammar_from_json_schema(dict(schema)))
            except ValueError as error:
                raise _bad_schema(function["name"], error) from error
            ignored += [f"{function['name']}: {each}" for each in matcher.get_grammar_warnings()]
        return ignored

    def _free(self, preamble: Preamble, calls: CompiledGrammar | None) -> State:
        free = Free(self._call_start(calls))
        if calls is not None and calls.whole is not None:
            whole = Constrained(calls.whole.deep_copy())
            if not preamble.may_think and channel_markers(self._tokenizer) is not None:
                # A continued message has no header of its own.
                whole = Constrained(self._tokens.message_text.deep_copy())
            return self._thought(whole) if preamble.thinking else whole
        if preamble.thinking:
            return self._thought(free)
        if preamble.may_think and self._tokens.thought_ids is not None:
            return Free(free.call, Marker(self._tokens.thought_ids[0], self._thought(free)))
        return free

    def _start(
        self, answer: Constrained, preamble: Preamble, calls: CompiledGrammar | None
    ) -> State:
        markers: tuple[Marker, ...] = ()
        if preamble.may_call:
            markers = (Marker(self._tokens.call_ids, self._call_start(calls) or Free()),)
        if not preamble.thinking and (not preamble.may_think or self._tokens.thought_ids is None):
            return AnswerStart(answer, markers)
        thought = self._thought(self._after_thought(answer, markers))
        if preamble.thinking:
            return thought
        assert self._tokens.thought_ids is not None
        return AnswerStart(answer, (*markers, Marker(self._tokens.thought_ids[0], thought)))

    def _call_start(self, calls: CompiledGrammar | None) -> CallStart | None:
        return None if calls is None else CallStart(self._tokens.call_ids, calls.matcher)

    def _thought(self, then: State) -> State:
        if self._tokens.thought_ids is not None:
            return Thought(self._tokens.thought_ids[1], then)
        if isinstance(then, Free):
            return then
        return Constrained(self._tokens.thought_text.deep_copy(), then)

    def _after_thought(self, answer: Constrained, markers: tuple[Marker, ...]) -> AnswerStart:
        start = AnswerStart(answer, markers)
        # At most two line breaks, as one token or two.
        line, blank = (tuple(self._tokens.known.tokenize_str(text)) for text in ("\n", "\n\n"))
        second = AnswerStart(answer, (*markers, Marker(line, start)))
        both = (Marker(blank, start),) if len(blank) == 1 else ()
        return AnswerStart(answer, (*markers, *both, Marker(line, second)))


def _compiled(param: str, matcher: LLMatcher, removed: Sequence[str] = ()) -> CompiledGrammar:
    parts = [*removed, *matcher.get_grammar_warnings()]
    if not parts:
        return CompiledGrammar(param, matcher)
    detail = "; ".join(parts)[:_SHOWN]
    return CompiledGrammar(
        param, matcher, (Reason("format.relaxed", {"field": param, "detail": detail}),)
    )


def _is_regex(pattern: str) -> bool:
    with suppress(re.error, RecursionError, OverflowError):
        re.compile(pattern)
        return True
    return False


def _names(use: ToolUse) -> str:
    return ", ".join(function["name"] for function in use.allowed)[:200]


def _bad_schema(name: str, error: Exception) -> BadRequest:
    return BadRequest("tools.schema", param="tools", name=name, detail=str(error).strip())


def _source(output: StructuredOutput) -> str:
    """Return the grammar in llguidance's language. Raises ValueError."""
    match output.kind:
        case GrammarKind.JSON:
            schema = output.text
            if schema.strip() == "true":
                schema = "{}"  # options apply only to objects
            check_integers(schema)
            if "$ref" in schema or "\\u" in schema:  # a key may be escaped
                parsed = json.loads(schema)
                check_depth(parsed)
                schema = json.dumps(prune_nonterminating(parsed))
            if any(kind in schema for kind in TIMES):
                schema = json.dumps(without_leap_seconds(json.loads(schema)))
            overrides = None if output.strict else LENIENT
            return LLMatcher.grammar_from_json_schema(schema, defaults=SPACING, overrides=overrides)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(output.text)
        case GrammarKind.CHOICE:
            texts = (json.dumps(text, ensure_ascii=False) for text in json.loads(output.text))
            return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
        case GrammarKind.GRAMMAR:
            return LLMatcher.grammar_from_lark(_lark(output.text))


def _lark(grammar: str) -> str:
    """Convert a grammar in llama.cpp's format or in Lark's. Raises ValueError."""
    if (rules := len(_RULE.findall(grammar))) > MAX_RULES:
        raise ValueError(f"{rules} rules exceed the limit of {MAX_RULES}")
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the converter raises errors of many types
        raise ValueError(str(error) or type(error).__name__) from error


class GrammarCache(Generic[T]):
    """Results by source, `CACHE_SIZE` at most. Thread-safe.

    Keys are digests: the tools of a request may be megabytes of schemas.
    """

    def __init__(self) -> None:
        self._results: dict[bytes, T | BadRequest] = {}
        self._lock = Lock()

    def get(self, source: str, compile: Callable[[], T]) -> T:
        """Return the result for a source, compiled on a miss.

        Raises the BadRequest of `compile`, also a cached error.
        """
        key = sha256(source.encode(errors="surrogatepass")).digest()
        with self._lock:
            result = self._results.pop(key, None)
        if result is None:
            result = self._compiled(compile)
        with self._lock:
            self._results[key] = result  # the newest entry comes last
            while len(self._results) > CACHE_SIZE:
                del self._results[next(iter(self._results))]
        if isinstance(result, BadRequest):
            raise BadRequest(result.code, param=result.param, **result.params)
        return result

    @staticmethod
    def _compiled(compile: Callable[[], T]) -> T | BadRequest:
        # Without the cause: its frames keep the compiled grammar alive.
        try:
            return compile()
        except BadRequest as error:
            refusal = BadRequest(error.code, param=error.param, **error.params)
        trim()  # compilation may have taken tens of megabytes
        return refusal
