"""Token masks of structured output along a draft. Pure Python.

A mask stands at the committed tokens. What advances it further takes it back, so that nothing of a
rejected draft stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from omlx.engine.types import TokenMask
from omlx.errors import BadRequest


@contextmanager
def lookahead(mask: TokenMask) -> Iterator[Callable[[int], bool]]:
    """Give a function that advances a mask on trial; on exit it is rolled back.

    The function returns False for a token that is not allowed, or ends the output.
    """
    advanced = 0

    def advance(token: int) -> bool:
        nonlocal advanced
        if not mask.advance(token):
            return False
        advanced += 1
        return not mask.ended

    try:
        yield advance
    finally:
        mask.rollback(advanced)


@dataclass(frozen=True, slots=True, eq=False)
class KnownTokensMask:
    """A `TokenMask` without the ids that a tokenizer has and the model has not.

    `bits` raises BadRequest where the output format allows nothing else.
    """

    _mask: TokenMask
    _vocab_size: int

    @property
    def ended(self) -> bool:
        return self._mask.ended

    @property
    def free(self) -> int:
        return self._mask.free

    def bits(self) -> bytes | None:
        bits = self._mask.bits()
        if bits is None:
            return None
        whole, partial = divmod(self._vocab_size, 8)
        known = bits[:whole]
        if partial:
            known += bytes(byte & (1 << partial) - 1 for byte in bits[whole : whole + 1])
        if not any(known):
            raise BadRequest("format.missing_tokens", size=self._vocab_size)
        return known.ljust(len(bits), b"\0")

    def advance(self, token: int) -> bool:
        return token < self._vocab_size and self._mask.advance(token)

    def rollback(self, n: int) -> None:
        self._mask.rollback(n)


def masks_along(mask: TokenMask, draft: Sequence[int]) -> list[bytes | None]:
    """Return the masks that verify a draft: row i of len(draft) + 1 as if draft[:i] were accepted.

    Rows behind a token that is not allowed, or that ends the output, are never reached: they are
    None.
    """
    rows: list[bytes | None] = [mask.bits()]
    with lookahead(mask) as advance:
        for token in draft:
            if not advance(token):
                break
            rows.append(mask.bits())
    return rows + [None] * (len(draft) + 1 - len(rows))


def allowed_prefix(mask: TokenMask | None, draft: tuple[int, ...]) -> tuple[int, ...]:
    """Return the leading tokens that the mask allows, none behind the end of the output."""
    if mask is None:
        return draft
    with lookahead(mask) as advance:
        for i, token in enumerate(draft):
            if not allows(mask.bits(), token):
                return draft[:i]
            if not advance(token):
                return draft[: i + 1]
    return draft


def forced_tokens(mask: TokenMask, limit: int) -> tuple[int, ...]:
    """Return the next tokens as long as the mask allows exactly one, at most `limit`."""
    forced: list[int] = []
    with lookahead(mask) as advance:
        while len(forced) < limit and (token := only_token(mask.bits())) is not None:
            forced.append(token)
            if not advance(token):
                break
    return tuple(forced)


def only_token(bits: bytes | None) -> int | None:
    """Return the id that a mask allows if it is the only one, else None."""
    if bits is None:
        return None
    number = int.from_bytes(bits, "little")
    if number.bit_count() != 1:
        return None
    return number.bit_length() - 1


def allows(bits: bytes | None, token: int) -> bool:
    return bits is None or (token // 8 < len(bits) and bool(bits[token // 8] >> token % 8 & 1))


def with_ids(bits: bytes, ids: Iterable[int]) -> bytes:
    row = bytearray(bits)
    for token in ids:
        row[token // 8] |= 1 << token % 8
    return bytes(row)


def without_ids(bits: bytes, ids: Iterable[int]) -> bytes:
    row = bytearray(bits)
    for token in ids:
        row[token // 8] &= ~(1 << token % 8)
    return bytes(row)
