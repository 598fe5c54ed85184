"""Constraints of a choice: the form of its output, and its thinking budget.

The budget's mask follows the output with the parser that separates reasoning from content, and so
counts the reasoning tokens that the response reports. Once the budget is spent, a sentence and the
closing marker are the only tokens allowed; after that, no reasoning may be opened again.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.engine.step.masking import allows, with_ids, without_ids
from omlx.engine.types import TokenMask
from omlx.text.filters import REASONING, Splitter
from omlx.text.grammar import CompiledGrammar, GrammarCompiler, Preamble, StructuredOutput
from omlx.text.mask import GrammarMask
from omlx.text.reasoning import (
    channel_markers,
    message_channels,
    reasoning_format,
    reasoning_splitter,
)
from omlx.text.tokens import TokenBytes, Tokenizer
from omlx.text.tools import ToolUse


@dataclass(frozen=True, slots=True)
class Constraint(Preamble):
    """Structured output, tools with their arguments, or both, and a thinking budget."""

    output: StructuredOutput | None = None
    tools: ToolUse | None = None
    thinking_budget: int | None = None  # tokens
    opened: bool = False  # the prompt, conversation or not, ends in reasoning

    def compile(
        self, grammars: GrammarCompiler
    ) -> tuple[CompiledGrammar | None, CompiledGrammar | None]:
        """Compile the grammars of the structured output and of tool calls. Raises BadRequest."""
        output = None if self.output is None else grammars.compile(self.output)
        calls = None if self.tools is None else grammars.compile_tool_calls(self.tools)
        return output, calls

    def mask(
        self,
        grammars: GrammarCompiler,
        budgets: ThinkingBudgets,
        output: CompiledGrammar | None,
        calls: CompiledGrammar | None,
    ) -> TokenMask | None:
        """Return the mask of the output's form and of its thinking budget.

        Takes the grammars that `compile` returns. None if nothing is constrained.
        """
        forced = self.tools is not None and self.tools.forced
        answer = calls if forced else output
        form: GrammarMask | None = None
        if answer is not None or (calls is not None and not forced):
            form = grammars.mask(answer, self, None if forced else calls)
        if self.thinking_budget is None:
            return form
        return budgets.mask(self.thinking_budget, form, self.tools, thinking=self.opened)


CLOSING_SENTENCE: Final = "\n\nThat is enough thought. I will answer with what I have.\n"
"""Text before the closing marker: without it, models continue in the style of reasoning."""

_FOREVER: Final = 1 << 62
_ROLLBACK: Final = 2 * MAX_DRAFT_LENGTH  # tokens — twice the longest rewind, a draft
_Utf8: Final = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class ThoughtMarkers:
    sentence: tuple[int, ...]  # before `closing`
    closing: tuple[int, ...]  # ends reasoning
    # After a token `reopens[0]`, `reopens[1]` opens reasoning again; a single id does so anywhere;
    # () if nothing does.
    reopens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Position in the output."""

    splitter: Splitter
    incomplete: bytes = b""  # bytes of an incomplete character
    newest: int | None = None  # last token id
    spent: int = 0  # reasoning tokens so far
    forced: tuple[int, ...] = ()  # tokens that must follow


class ThinkingBudgets:
    """Thinking budgets of a model; `markers` is None if they cannot be forced."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: TokenBytes, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.token_bytes = token_bytes
        self.no_ids = bytes((vocab_size + 7) // 8)

    @cached_property
    def markers(self) -> ThoughtMarkers | None:
        channels, opening = message_channels(self._tokenizer), channel_markers(self._tokenizer)
        if channels is not None:
            if opening is None:
                return None
            return self._markers(channels[1][REASONING][0][0], opening[0])
        form = reasoning_format(self._tokenizer)
        if form is None or not form.opens:
            return None
        return self._markers(form.closes, form.opens if form.repeats else "")

    def mask(
        self, budget: int, inner: TokenMask | None, tools: ToolUse | None, *, thinking: bool
    ) -> TokenMask | None:
        """Return `inner`, the mask of the output's form, combined with a `budget` in tokens.

        `thinking`: the prompt has opened reasoning.
        """
        if self.markers is None:
            return inner
        functions = () if tools is None else tools.functions
        splitter = reasoning_splitter(self._tokenizer, functions, thinking=thinking)
        return BudgetMask(self, self.markers, budget, splitter, inner)

    def _markers(self, closing: str, opening: str) -> ThoughtMarkers:
        reopens = self._ids(opening)[:2]
        if reopens and reopens[0] not in self._tokenizer._tokenizer.get_added_vocab().values():
            # An opening marker that is no special token cannot be barred: it is closed at once.
            reopens = ()
        return ThoughtMarkers(self._ids(CLOSING_SENTENCE), self._ids(closing), reopens)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


class BudgetMask:
    """Mask of a choice with a thinking budget, an engine `TokenMask`.

    The mask `inner` takes precedence: if it bars a forced token, the tokens of `inner` are allowed.
    """

    def __init__(
        self,
        model: ThinkingBudgets,
        markers: ThoughtMarkers,
        budget: int,
        splitter: Splitter,
        inner: TokenMask | None,
    ) -> None:
        self._model, self._markers = model, markers
        self.budget, self._inner = budget, inner
        self._place = self._with_closing(_Place(splitter))
        self._history: deque[_Place] = deque(maxlen=_ROLLBACK)

    @property
    def ended(self) -> bool:
        return self._inner is not None and self._inner.ended

    @property
    def free(self) -> int:
        if self._inner is not None:
            return 0
        if self._place.splitter.settled:
            return _FOREVER
        return max(0, self.budget - self._place.spent)

    def bits(self) -> bytes | None:
        bits = None if self._inner is None else self._inner.bits()
        forced, barred = self._place.forced, self._barred
        if forced and allows(bits, forced[0]):
            return with_ids(self._model.no_ids, forced[:1])
        if barred is None or not allows(bits, barred):
            return bits
        if bits is None:
            bits = b"\xff" * len(self._model.no_ids)
        others = without_ids(bits, (barred,))
        return others if any(others) else bits

    def advance(self, token: int) -> bool:
        constrained = self._place.forced or self._barred is not None
        if constrained and not allows(self.bits(), token):
            return False
        if self._inner is not None and not self._inner.advance(token):
            return False
        self._history.append(self._place)
        if not self._place.splitter.settled:
            self._place = self._after(token)
        return True

    def rollback(self, n: int) -> None:
        if self._inner is not None:
            self._inner.rollback(n)
        for _ in range(n):
            self._place = self._history.pop()

    @property
    def _barred(self) -> int | None:
        """Token that would open reasoning although the budget is spent."""
        place, reopens = self._place, self._markers.reopens
        if not reopens or place.spent < self.budget or place.splitter.thinking:
            return None
        if len(reopens) == 1 or place.newest == reopens[0]:
            return reopens[-1]
        return None

    def _after(self, token: int) -> _Place:
        place = self._place
        decoder = _Utf8("replace")
        decoder.setstate((place.incomplete, 0))
        text = decoder.decode(self._model.token_bytes(token))
        splitter = copy(place.splitter)
        splitter.feed(text)
        spent = place.spent + (place.splitter.thinking and splitter.thinking)
        after = _Place(splitter, decoder.getstate()[0], token, spent)
        if place.forced[:1] == (token,) and len(place.forced) > 1:
            return replace(after, forced=place.forced[1:])
        return self._with_closing(after)

    def _with_closing(self, place: _Place) -> _Place:
        if not place.splitter.thinking or place.spent < self.budget:
            return place
        markers = self._markers
        # The sentence comes once, and not for a budget of 0.
        if place.spent == self.budget > 0:
            return replace(place, forced=markers.sentence + markers.closing)
        return replace(place, forced=markers.closing)
