"""Texts that are far longer than a limit are refused early; every other one has the ids that the
tokenizer gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text import tokens
from omlx.text.tokens import (
    INFILL_FAMILIES,
    PIECE,
    Detokenizer,
    InfillTokens,
    TokenBytes,
    decode_byte_level,
    encode,
    infill_prompt,
    infill_token_ids,
)
from tests.text.tokenizers import SPECIAL
from tests.text.tokenizers import decode_byte_level as byte_level_tokenizer


def changed(
    tokenizer: TokenizerWrapper, added: Mapping[str, Any] = MappingProxyType({}), **parts: Any
) -> TokenizerWrapper:
    """Return a tokenizer with other parts; `added` are texts and flags of further tokens."""
    from tokenizers import AddedToken, Tokenizer  # noqa: PLC0415 — slow to import
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    inner = Tokenizer.from_str(tokenizer._tokenizer.backend_tokenizer.to_str())
    for name, part in parts.items():
        setattr(inner, name, part)
    tokens = [AddedToken(text, special=True, **flags) for text, flags in added.items()]
    inner.add_special_tokens(tokens)
    template = str(tokenizer.chat_template) + "".join(added)
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template))


@pytest.fixture(scope="module")
def various(bpe: TokenizerWrapper, spm: TokenizerWrapper) -> list[TokenizerWrapper]:
    """Tokenizers that treat first characters, spaces and special tokens differently."""
    from tokenizers import normalizers, pre_tokenizers  # noqa: PLC0415 — slow to import

    tokenizers = [bpe, spm]
    for scheme in ("first", "always"):
        part = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        tokenizers.append(changed(spm, normalizer=None, pre_tokenizer=part))
    tokenizers.append(changed(spm, normalizer=normalizers.Prepend("the")))
    tokenizers.append(changed(bpe, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)))
    for flag in ("lstrip", "rstrip", "single_word", "normalized"):
        tokenizers.append(changed(bpe, {"<|stop|>": {flag: True}, "log": {flag: True}}))
    for flag in ("lstrip", "single_word"):
        tokenizers.append(changed(bpe, {"<|im_start|>2": {flag: True}}))
    tokenizers.append(changed(bpe, {"_start>": {}, "log": {"single_word": True}}))
    tokenizers.append(changed(bpe, {"log<|im_": {}, "|><|im_start|>": {}, "<|<|": {}}))
    tokenizers.append(changed(bpe))
    tokenizers[-1]._tokenizer.split_special_tokens = True
    return tokenizers


PARTS = (*SPECIAL[:2], *"2 _start> <|stop|> <|im_ <| |> < log the é 日本".split(), " ", "\n")


@given(texts=st.lists(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), max_size=3))
def test_the_ids_of_a_prompt_do_not_depend_on_earlier_ones(
    various: list[TokenizerWrapper], texts: list[str]
) -> None:
    for tokenizer in various:
        for end in range(len(texts) + 1):
            text = "".join(texts[:end])
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert encode(tokenizer, text, special=False) == ids


def test_only_new_segments_of_a_prompt_are_encoded(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [f"<|im_start|>{number} the log" for number in range(9)]
    encode(counting, "".join(turns[:8]), special=False)
    Counting.characters = 0
    encode(counting, "".join(turns), special=False)
    assert counting.characters == len(turns[8])
    monkeypatch.setattr(tokens, "KEPT_CHARACTERS", 2 * len(turns[0]))
    for turn in (turns[8], "<|im_end|>", turns[0], "<|im_end|>"):
        encode(counting, turn, special=False)
    assert counting.characters == len(turns[8]) + len("<|im_end|>") + len(turns[0])


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


TEXT = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd\0"), max_size=40
)


def read(tokenizer: TokenizerWrapper, tokens: list[int]) -> list[str]:
    machine = Detokenizer(tokenizer)
    return [*(machine.feed(token) for token in tokens), machine.finish()]


@given(text=TEXT)
def test_byte_level_text_comes_back_whole(bpe: TokenizerWrapper, text: str) -> None:
    segments = read(bpe, bpe.encode("x" + text, add_special_tokens=False))
    assert "".join(segments) == "x" + text
    assert "\ufffd" not in "".join(segments)


@given(text=TEXT)
def test_byte_fallback_text_comes_back_whole(spm: TokenizerWrapper, text: str) -> None:
    text = "x" + text.replace("▁", "_")
    assert "".join(read(spm, spm.encode(text, add_special_tokens=False))) == text


@given(tokens=st.lists(st.integers(0, 261)))
def test_any_tokens_can_be_read_and_end_flushes_broken_bytes(
    bpe: TokenizerWrapper, tokens: list[int]
) -> None:
    segments = read(bpe, tokens)
    assert all(not segment.endswith("\ufffd") for segment in segments[:-1])


@pytest.mark.parametrize("text", ["naïve", "日本", "👩‍👩‍👧"])
def test_no_segment_ends_inside_a_character(bpe: TokenizerWrapper, text: str) -> None:
    assert set("".join(read(bpe, bpe.encode(text, add_special_tokens=False)))) == set(text)


@pytest.mark.parametrize("text", ["naïv", "日本", "a 👍"])
def test_part_of_a_character_at_the_end_is_dropped(bpe: TokenizerWrapper, text: str) -> None:
    tokens = bpe.encode(f"{text}日", add_special_tokens=False)
    for cut in (1, 2):
        assert "".join(read(bpe, tokens[:-cut])) == text


def test_context_keeps_the_first_space(bpe: TokenizerWrapper) -> None:
    the = bpe.encode(" the", add_special_tokens=False)
    machine = Detokenizer(bpe, context=bpe.encode("over", add_special_tokens=False))
    assert "".join(map(machine.feed, the)) == " the"


@pytest.mark.parametrize("before", ["over ", "over  ", "é ", "over\n"])
@pytest.mark.parametrize("behind", ["the", " the", " ", "", "é"])
def test_what_the_context_ends_in_is_not_said_again(
    bpe: TokenizerWrapper, spm: TokenizerWrapper, before: str, behind: str
) -> None:
    for tokenizer in (bpe, spm):
        first, second = (
            tokenizer.encode(text, add_special_tokens=False) for text in (before, behind)
        )
        machine = Detokenizer(tokenizer, first)
        assert "".join([*map(machine.feed, second), machine.finish()]) == behind


@given(text=TEXT)
def test_bytes_of_tokens_add_up_to_the_text(
    bpe: TokenizerWrapper, spm: TokenizerWrapper, text: str
) -> None:
    pieces = TokenBytes(bpe)
    assert b"".join(map(pieces, bpe.encode(text, add_special_tokens=False))) == text.encode()
    text = text.replace("▁", "_")
    assert (
        b"".join(map(TokenBytes(spm), spm.encode(text, add_special_tokens=False))) == text.encode()
    )


def test_byte_alphabet_covers_every_byte() -> None:
    pieces = {decode_byte_level(chr(i)) for i in range(0x21, 0x144)}
    assert {bytes([byte]) for byte in range(256)} <= pieces


def tokens_of(gap: InfillTokens) -> tuple[str, ...]:
    return tuple(name for name in (gap.prefix, gap.suffix, gap.middle) if name is not None)


@pytest.mark.parametrize("gap", INFILL_FAMILIES, ids=lambda gap: gap.prefix)
def test_each_family_of_tokens(tmp_path: Path, gap: InfillTokens) -> None:
    tokenizer = byte_level_tokenizer(tmp_path, special=(*SPECIAL, *tokens_of(gap)))
    said = tokenizer.decode(infill_prompt(tokenizer, "def f(", "return 1"))
    if gap.middle is None:
        assert said == f"{gap.suffix}return 1{gap.prefix}def f("
    else:
        assert said == f"{gap.prefix}def f({gap.suffix}return 1{gap.middle}"
    assert {tokenizer.decode([each]) for each in infill_token_ids(tokenizer)} == set(tokens_of(gap))


def test_a_model_without_them(bpe: TokenizerWrapper) -> None:
    with pytest.raises(BadRequest) as caught:
        infill_prompt(bpe, "a", "b")
    assert (caught.value.code, caught.value.param) == ("request.no_gap", "suffix")
    assert infill_token_ids(bpe) == frozenset()
