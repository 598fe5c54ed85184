"""LRU cache of compiled grammars. Refusals are cached too: a grammar that exceeds the limits costs
as much time as one that compiles."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from threading import Lock
from typing import Final, Generic, TypeVar

from omlx.errors import BadRequest
from omlx.process_memory import trim

T = TypeVar("T")

CACHE_SIZE: Final = 32


class GrammarCache(Generic[T]):
    """Results by source, `CACHE_SIZE` at most. Thread-safe.

    Keys are digests: the tools of one request may be megabytes of schemas.
    """

    def __init__(self) -> None:
        self._results: dict[bytes, T | BadRequest] = {}
        self._lock = Lock()

    def get(self, source: str, compile: Callable[[], T]) -> T:
        """Return the result for a source, compiled on a miss. Raises the BadRequest of `compile`,
        also where it is cached."""
        key = sha256(source.encode(errors="surrogatepass")).digest()
        with self._lock:
            result = self._results.pop(key, None)
        if result is None:
            result = _result(compile)
        with self._lock:
            self._results[key] = result  # the newest entry comes last
            while len(self._results) > CACHE_SIZE:
                del self._results[next(iter(self._results))]
        if isinstance(result, BadRequest):
            raise _copy(result)
        return result


def _result(compile: Callable[[], T]) -> T | BadRequest:
    """Return the result or a refusal without its cause, whose frames hold what was compiled."""
    try:
        return compile()
    except BadRequest as error:
        refusal = _copy(error)
    trim()  # what was compiled may have taken tens of megabytes
    return refusal


def _copy(error: BadRequest) -> BadRequest:
    return BadRequest(error.code, param=error.param, **error.params)
