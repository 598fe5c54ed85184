"""Filling in the middle: a prompt out of what stands before and behind the gap, for models that were trained to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from omlx.errors import BadRequest

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The tokens of one family. `middle` None: the part behind the gap comes first, and the prefix is gone on with."""

    prefix: str
    suffix: str
    middle: str | None


INFILL_FAMILIES: Final = (
    InfillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),
    InfillTokens("[PREFIX]", "[SUFFIX]", None),
)


def infill_prompt(tokenizer: TokenizerWrapper, before: str, behind: str) -> tuple[int, ...]:
    """Raises BadRequest if the model has no tokens for this."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    gap = next(
        (
            gap
            for gap in INFILL_FAMILIES
            if {gap.prefix, gap.suffix, gap.middle or gap.suffix} <= vocabulary.keys()
        ),
        None,
    )
    if gap is None:
        raise BadRequest("request.no_gap", param="suffix")
    begin = tokenizer.encode("")
    head = begin if begin == [tokenizer.bos_token_id] else []
    first = [vocabulary[gap.prefix], *tokenizer.encode(before, add_special_tokens=False)]
    second = [vocabulary[gap.suffix], *tokenizer.encode(behind, add_special_tokens=False)]
    if gap.middle is None:
        return (*head, *second, *first)
    return (*head, *first, *second, vocabulary[gap.middle])


def infill_token_ids(tokenizer: TokenizerWrapper) -> frozenset[int]:
    """Tokens that end what fills a gap: no text has them."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    names = {
        name
        for gap in INFILL_FAMILIES
        for name in (gap.prefix, gap.suffix, gap.middle)
        if name is not None
    }
    return frozenset(vocabulary[name] for name in names if name in vocabulary)
