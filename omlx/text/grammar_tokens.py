"""A model's tokens as grammars need them: llguidance's view of the tokenizer, and the markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from omlx.errors import BadRequest
from omlx.text.calls.grammar import answer_text, split_added
from omlx.text.calls.markup import call_markup
from omlx.text.reasoning import channel_markers, reasoning_format

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_LIMITS: Final = LLParserLimits(verbose_errors=False, initial_lexer_fuel=200_000)
"""llguidance holds Python's lock while it builds a lexer: the fuel, a count of expressions, keeps
that below 0.1 CPU seconds. A list of 20,000 words fits."""


class GrammarTokens:
    """Tokens of one model, and matchers over them."""

    def __init__(self, tokenizer: TokenizerWrapper, stop_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = sorted(stop_ids)

    def matcher(self, source: str) -> LLMatcher:
        """Compile a source. Raises ValueError, also if the grammar allows no first token."""
        matcher = LLMatcher(self.known, source, log_level=0, limits=_LIMITS)
        ahead = matcher.deep_copy()
        ahead.consume_tokens(ahead.compute_ff_tokens())
        ahead.compute_bitmask()
        if ahead.is_error():
            complaint = ahead.get_error().removesuffix("<non-verbose/>").strip()
            if complaint == "NoExtensionBias":
                complaint = "nothing has this form"
            raise ValueError(complaint)
        return matcher

    @cached_property
    def thought_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Tokens that open and close reasoning; None for a model without it, or whose markers are
        plain text.
        """
        channels = channel_markers(self._tokenizer)
        if channels is not None:
            return self._marker_ids(channels[0]), self._marker_ids(channels[1])
        form = reasoning_format(self._tokenizer)
        if form is None or not form.opens:
            return None
        if form.opens == self._tokenizer.think_start:
            tokenizer = self._tokenizer
            return tuple(tokenizer.think_start_tokens), tuple(tokenizer.think_end_tokens)
        if not any(token in form.closes for token in self.added):
            return None
        return self._marker_ids(form.opens), self._marker_ids(form.closes)

    @cached_property
    def thought_text(self) -> LLMatcher:
        """Matcher of reasoning whose closing marker is plain text, with the marker."""
        form = reasoning_format(self._tokenizer)
        assert form is not None
        closes = re.escape(form.closes).replace("/", r"\/")
        return self.matcher(f"start: thought\nthought[lazy]: /(?s:.*){closes}/")

    @cached_property
    def message_text(self) -> LLMatcher:
        """Matcher of the text of a message without markup, in a family whose calls are messages."""
        markup = call_markup(self._tokenizer, ())
        assert markup is not None
        assert markup.form.messages is not None
        return self.matcher(f"start: ANSWER?\n{answer_text(markup.form.messages)}")

    @cached_property
    def call_ids(self) -> tuple[int, ...]:
        markup = call_markup(self._tokenizer, ())
        assert markup is not None
        return self._marker_ids(markup.start)

    def _marker_ids(self, marker: str) -> tuple[int, ...]:
        """Tokens of a marker. llguidance alone finds added tokens only if they look like tags."""
        ids: list[int] = []
        for part in split_added(marker, self.added):
            known = self.added.get(part)
            ids += self.known.tokenize_str(part) if known is None else [known]
        return tuple(ids)

    @cached_property
    def added(self) -> Mapping[str, int]:
        """Tokens that the tokenizer does not compose of smaller ones."""
        added: Mapping[str, int] = self._tokenizer._tokenizer.get_added_vocab()
        return added

    @cached_property
    def known(self) -> LLTokenizer:
        """llguidance's view of the tokenizer. Raises BadRequest for a tokenizer that it cannot
        read.
        """
        # Imports transformers, as the first tokenizer does: slow.
        from llguidance import hf  # noqa: PLC0415
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

        inner = self._tokenizer._tokenizer
        if not isinstance(inner, PreTrainedTokenizerFast):
            raise BadRequest("format.tokenizer")
        return hf.from_tokenizer(inner, eos_token=self._stop_ids or None)

    @cached_property
    def without_stops(self) -> bytes:
        """Bitmask of all tokens but the stop tokens."""
        mask = bytearray(b"\xff" * ((self.known.vocab_size + 7) // 8))
        for token in self._stop_ids:
            mask[token // 8] &= ~(1 << token % 8)
        return bytes(mask)
