"""Token ids to text, as a stream.

`Detokenizer` wraps mlx-lm's streaming detokenizers as `feed` and `finish`. A piece never ends
inside a UTF-8 character: the bytes of an incomplete one are held back until it is complete, and
dropped where the output ends within it.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


class Detokenizer:
    """Stream of the text of one output.

    `context`, tokens before the output, is read first and not returned: with it the first space of
    a continued message is kept.
    """

    def __init__(self, tokenizer: TokenizerWrapper, context: Iterable[int] = ()) -> None:
        self._stream = tokenizer.detokenizer
        self._pending = ""  # end of the context that comes with the next token: a space
        for token in context:
            self.feed(token)
        ahead = copy(self._stream)
        ahead.finalize()
        pending = str(ahead.last_segment)
        if "\ufffd" not in pending:
            self._pending = pending

    def feed(self, token: int) -> str:
        self._stream.add_token(token)
        return self._segment()

    def finish(self) -> str:
        """Return what was held back, but for the bytes of an incomplete character."""
        self._stream.finalize()
        return self._segment().rstrip("\ufffd")

    def _segment(self) -> str:
        text = str(self._stream.last_segment)
        if text and self._pending:
            text, self._pending = text.removeprefix(self._pending), ""
        return text


class TokenBytes:
    """Bytes of single tokens, as logprobs report them. A token may hold part of a character."""

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        # Imported with the first tokenizer: slow.
        from mlx_lm import tokenizer_utils  # noqa: PLC0415

        self._tokenizer = tokenizer
        self._spm: list[bytes] = []
        self._bpe: list[str] = []
        stream = tokenizer.detokenizer
        if isinstance(stream, tokenizer_utils.SPMStreamingDetokenizer):
            self._spm = stream.tokenmap
        if isinstance(stream, tokenizer_utils.BPEStreamingDetokenizer):
            self._bpe = stream.tokenmap

    def __call__(self, token: int) -> bytes:
        if token < len(self._spm):
            return self._spm[token].replace("\u2581".encode(), b" ")
        if token < len(self._bpe):
            return decode_byte_level(self._bpe[token])
        return str(self._tokenizer.decode([token])).encode()


def decode_byte_level(piece: str) -> bytes:
    """Decode the byte-level alphabet of GPT-2's BPE. Characters outside of it (special tokens) stay
    as they are.
    """
    return b"".join(_BYTES.get(character) or character.encode() for character in piece)


def _byte_alphabet() -> dict[str, bytes]:
    """Printable Latin-1 stands for itself; the other bytes, in order, are the characters from
    U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)}


_BYTES: Final = _byte_alphabet()
