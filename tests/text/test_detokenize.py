from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.text.tokens import Detokenizer, TokenBytes, decode_byte_level

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
