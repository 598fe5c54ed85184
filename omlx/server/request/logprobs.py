"""Logprobs of tokens as JSON, in the form that several dialects share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from omlx.engine.types import TokenLogprob
from omlx.server.request.dialect import Json

_LOWEST_LOGPROB: Final = -9999.0


def finite(logprob: float) -> float:
    """Replace -infinity, which JSON does not have, by the lowest logprob that clients expect."""
    return logprob if logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB


def logprob_entries(
    entries: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes]
) -> list[Json]:
    def token(id: int, logprob: float) -> Json:
        raw = token_bytes(id)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}

    encoded = []
    for entry in entries:
        top = [token(id, logprob) for id, logprob in entry.top]
        encoded.append(token(entry.token, entry.logprob) | {"top_logprobs": top})
    return encoded
