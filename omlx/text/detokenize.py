"""Token ids to text, as they come.

`Detokenizer` wraps mlx-lm's streaming detokenizers in the feed/finish form that every text machine here has. A segment
never ends inside a UTF-8 character: the bytes of an unfinished one are held back until it is whole or the output ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Detokenizer:
    """`context` is read first and not given back: with it the output's first space is kept (a continued message)."""

    def __init__(self, tokenizer: TokenizerWrapper, context: Iterable[int] = ()) -> None:
        self._stream = tokenizer.detokenizer
        self._late = ""  # what the context ends in and comes with the next token: a space
        for token in context:
            self.feed(token)
        rest = copy(self._stream)
        rest.finalize()
        late = str(rest.last_segment)
        self._late = late if "\ufffd" not in late else ""

    def feed(self, token: int) -> str:
        self._stream.add_token(token)
        return self._said()

    def finish(self) -> str:
        self._stream.finalize()
        return self._said()

    def _said(self) -> str:
        text = str(self._stream.last_segment)
        if text and self._late:
            text, self._late = text.removeprefix(self._late), ""
        return text


class TokenBytes:
    """The bytes that single tokens stand for; what logprobs report. A token may hold part of a character."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        from mlx_lm import tokenizer_utils  # noqa: PLC0415 — slow, and there with the first tokenizer

        self._tokenizer = tokenizer
        stream = tokenizer.detokenizer
        self._spm = (
            stream.tokenmap if isinstance(stream, tokenizer_utils.SPMStreamingDetokenizer) else ()
        )
        self._bpe = (
            stream.tokenmap if isinstance(stream, tokenizer_utils.BPEStreamingDetokenizer) else ()
        )

    def __call__(self, token: int) -> bytes:
        if token < len(self._spm):
            piece: bytes = self._spm[token]
            return piece.replace("\u2581".encode(), b" ")
        if token < len(self._bpe):
            return decode_byte_level(self._bpe[token])
        return str(self._tokenizer.decode([token])).encode()


def decode_byte_level(piece: str) -> bytes:
    """Undo the byte-level alphabet of GPT-2's BPE; characters outside of it (special tokens) stand for themselves."""
    return b"".join(
        bytes([_BYTE_OF[character]]) if character in _BYTE_OF else character.encode()
        for character in piece
    )


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 stands for itself; the other bytes, in order, are the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_BYTE_OF = _byte_alphabet()
