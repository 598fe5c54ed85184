"""Infilling: a prompt from the text before and after a gap, for models trained to fill in the
middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from omlx.errors import BadRequest
from omlx.text.encode import MAX_TOKENS, encode

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Tokens of one family. Without `middle`, the suffix comes first and the model continues the
    prefix.
    """

    prefix: str
    suffix: str
    middle: str | None

    @property
    def names(self) -> set[str]:
        return {self.prefix, self.suffix, self.middle or self.suffix}


INFILL_FAMILIES: Final = (
    InfillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),
    InfillTokens("[PREFIX]", "[SUFFIX]", None),
)


def infill_prompt(
    tokenizer: TokenizerWrapper, before: str, after: str, limit: int = MAX_TOKENS
) -> tuple[int, ...]:
    """Return the tokens of an infilling prompt. Raises BadRequest if the model has no tokens for
    it, and for a text that is far longer than `limit` tokens.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    families = (family for family in INFILL_FAMILIES if family.names <= vocabulary.keys())
    family = next(families, None)
    if family is None:
        raise BadRequest("request.no_gap", param="suffix")
    begin = tokenizer.encode("")
    head = begin if begin == [tokenizer.bos_token_id] else []
    prefix = [vocabulary[family.prefix], *encode(tokenizer, before, limit, special=False)]
    suffix = [vocabulary[family.suffix], *encode(tokenizer, after, limit, special=False)]
    if family.middle is None:
        return (*head, *suffix, *prefix)
    return (*head, *prefix, *suffix, vocabulary[family.middle])


def infill_token_ids(tokenizer: TokenizerWrapper) -> frozenset[int]:
    """Return the ids of all infilling tokens; they end an infilled text."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    names = set[str]().union(*(family.names for family in INFILL_FAMILIES))
    return frozenset(vocabulary[name] for name in names if name in vocabulary)
