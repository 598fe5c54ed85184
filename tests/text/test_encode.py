"""Texts that are far longer than a limit are refused early; every other one has the ids that the
tokenizer gives it."""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text.tokens import PIECE, encode


class Counting(TokenizerWrapper):
    """Counts the characters that were encoded."""

    characters = 0

    def encode(self, text: str, **options: Any) -> Any:
        Counting.characters += len(text)
        return self._tokenizer.encode(text, **options)


@pytest.fixture
def counting(bpe: TokenizerWrapper) -> Counting:
    Counting.characters = 0
    return Counting(bpe._tokenizer)


def test_of_a_text_that_is_far_too_long_only_a_part_is_encoded(counting: Counting) -> None:
    with pytest.raises(BadRequest) as caught:
        encode(counting, "the log says no " * 300_000, 200, param="prediction")
    assert (caught.value.code, caught.value.param) == ("text.too_long", "prediction")
    assert 200 <= int(caught.value.params["tokens"] or 0) < PIECE
    assert counting.characters == PIECE


@pytest.mark.parametrize("text", ["the " * 40_000, "é" * 70_000, " " * 70_000, "<|im_end|>" * 9000])
def test_a_text_that_fits_is_encoded_as_a_whole(
    bpe: TokenizerWrapper, spm: TokenizerWrapper, text: str
) -> None:
    for tokenizer in (bpe, spm):
        ids = tokenizer.encode(text, add_special_tokens=False)
        for limit in (len(ids), len(ids) + 1, 4 * len(ids)):
            assert encode(tokenizer, text, limit, special=False) == ids


def test_white_space_that_a_special_token_takes_in_does_not_count(bpe: TokenizerWrapper) -> None:
    from tokenizers import AddedToken  # noqa: PLC0415 — slow to import
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    inner = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer.backend_tokenizer)
    inner.add_tokens([AddedToken("<|stop|>", rstrip=True, special=True)], special_tokens=True)
    text = "<|stop|>" + " " * 200_000
    assert len(encode(TokenizerWrapper(inner), text, 10, special=False)) == 1


def test_a_text_that_begins_with_the_begin_token_gets_no_second_one(bpe: TokenizerWrapper) -> None:
    from tokenizers.processors import TemplateProcessing  # noqa: PLC0415 — slow to import
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    inner = PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer.backend_tokenizer)
    inner.add_special_tokens({"bos_token": "<|im_start|>"})
    begin = inner.bos_token_id
    inner.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", begin)]
    )
    tokenizer = TokenizerWrapper(inner)
    plain = tokenizer.encode("a", add_special_tokens=False)
    assert encode(tokenizer, "a") == [begin, *plain]
    assert encode(tokenizer, "<|im_start|>a") == [begin, *plain]
    assert encode(tokenizer, "<|im_start|><|im_start|>a") == [begin, begin, *plain]
    assert encode(tokenizer, "<|im_start|>a", special=False) == [begin, *plain]
