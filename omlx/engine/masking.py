"""What a request may say next: the `TokenMask` of its output, looked at along a draft. Pure Python.

A mask follows what is committed. Whoever looks further ahead takes it back, so that nothing of a rejected path stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType

from omlx.engine.types import TokenMask


class Lookahead:
    """A mask advanced on trial, inside a `with`: at its end, all that was advanced is taken back."""

    def __init__(self, mask: TokenMask) -> None:
        self._mask = mask
        self._taken = 0

    def __enter__(self) -> Lookahead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mask.rollback(self._taken)

    def advance(self, token: int) -> bool:
        """Go on past a token; False if it may not come, or if nothing may follow it."""
        if not self._mask.advance(token):
            return False
        self._taken += 1
        return not self._mask.ended


def masks_along(mask: TokenMask, draft: Sequence[int]) -> list[bytes | None]:
    """The masks of the rows that verify a draft, as if draft[:i] were accepted: one more than it has tokens.

    Rows behind a token that may not come, or that ends the output, are never reached: they are left free.
    """
    rows: list[bytes | None] = [mask.bits()]
    with Lookahead(mask) as ahead:
        for token in draft:
            if not ahead.advance(token):
                break
            rows.append(mask.bits())
    return rows + [None] * (len(draft) + 1 - len(rows))


def allowed_prefix(mask: TokenMask | None, draft: tuple[int, ...]) -> tuple[int, ...]:
    """The beginning of a draft that may come."""
    if mask is None:
        return draft
    with Lookahead(mask) as ahead:
        for i, token in enumerate(draft):
            if not allows(mask.bits(), token):
                return draft[:i]
            if not ahead.advance(token):
                return draft[: i + 1]
    return draft


def forced_tokens(mask: TokenMask, limit: int) -> tuple[int, ...]:
    """The tokens that must come next, each the only one that may: at most `limit`."""
    found: list[int] = []
    with Lookahead(mask) as ahead:
        while len(found) < limit and (token := only_token(mask.bits())) is not None:
            found.append(token)
            if not ahead.advance(token):
                break
    return tuple(found)


def only_token(bits: bytes | None) -> int | None:
    """The one id that a row of bits allows; None if it allows another number of them."""
    if bits is None:
        return None
    number = int.from_bytes(bits, "little")
    return number.bit_length() - 1 if number.bit_count() == 1 else None


def allows(bits: bytes | None, token: int) -> bool:
    return bits is None or (token // 8 < len(bits) and bool(bits[token // 8] >> token % 8 & 1))


def with_ids(bits: bytes, ids: Iterable[int]) -> bytes:
    """A row of bits that allows these ids as well."""
    row = bytearray(bits)
    for token in ids:
        row[token // 8] |= 1 << token % 8
    return bytes(row)
