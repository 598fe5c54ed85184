"""Which models can draft for a target. Tokenizers are slow to read, so results are cached.

A page waits a moment for a few checks, and not for many; the others are finished in the background,
and the page asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from omlx.errors import ModelError, Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.heads.files import is_head
from omlx.models.package.compatibility import Tokenizer, checkpoint_mismatch, tokenizer_mismatch
from omlx.models.package.tokenizer import read_tokenizer

TIMEOUT_S: Final = 0.1
MAX_AWAITED: Final = 16
"""Tokenizers whose check may be awaited at all: each takes 20 ms (small) to 0.5 s."""

Compatibility: TypeAlias = Reason | None
"""Why a draft does not fit, None if it does."""


class DraftCompatibility:
    """`timeout_s` limits the wait; `read` reads a model's tokenizer and raises ModelError."""

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        read: Callable[[ModelEntry], Tokenizer] = read_tokenizer,
    ) -> None:
        self._timeout_s = timeout_s
        self._read = read
        self._known: dict[tuple[str, ...], Compatibility] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def of(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> dict[str, Compatibility]:
        """Return the result for each draft by its id, without those not known in time."""
        candidates = self._compare_entries(target, drafts)
        if candidates:
            check = self._checks.get(target.id)
            if check is None or check.done():
                check = asyncio.create_task(self._compare_tokenizers(target, candidates))
                self._checks[target.id] = check
            timeout_s = self._timeout_s if len(candidates) <= MAX_AWAITED else 0
            await asyncio.wait([check], timeout=timeout_s)
            if check.done():
                check.result()
        return self._results(target, drafts)

    def without_tokenizers(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> dict[str, Compatibility]:
        """Return the results that are known, or that entries alone tell; start no check."""
        self._compare_entries(target, drafts)
        return self._results(target, drafts)

    def _results(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> dict[str, Compatibility]:
        known = {}
        for draft in drafts:
            pair = _pair(target, draft)
            if pair in self._known:
                known[draft.id] = self._known[pair]
        return known

    def _compare_entries(
        self, target: ModelEntry, drafts: Sequence[ModelEntry]
    ) -> list[ModelEntry]:
        """Store what entries alone tell. Returns the drafts whose tokenizers must be compared."""
        candidates = []
        for draft in drafts:
            if _pair(target, draft) in self._known:
                continue
            reason = _unusable(draft) or checkpoint_mismatch(target, draft)
            if reason is None and not is_head(draft):  # a head has no tokenizer of its own
                candidates.append(draft)
            else:
                self._known[_pair(target, draft)] = reason
        return candidates

    async def _compare_tokenizers(
        self, target: ModelEntry, candidates: Sequence[ModelEntry]
    ) -> None:
        """Read each tokenizer once."""
        ours = await asyncio.to_thread(self._tokenizer, target)
        for draft in candidates:
            theirs = await asyncio.to_thread(self._tokenizer, draft)
            result = await asyncio.to_thread(_compare, ours, theirs)
            self._known[_pair(target, draft)] = result

    def _tokenizer(self, entry: ModelEntry) -> Tokenizer | Reason:
        try:
            return self._read(entry)
        except ModelError as error:
            return Reason(error.code, error.params)


def _unusable(draft: ModelEntry) -> Compatibility:
    """Return why a model cannot be used at all, unless it is a format that only drafts have."""
    draft_only = draft.reason is None or draft.reason.code in ("model.head_only", "model.gguf_only")
    return None if draft.status is Status.USABLE or draft_only else draft.reason


def _compare(ours: Tokenizer | Reason, theirs: Tokenizer | Reason) -> Compatibility:
    if isinstance(ours, Reason):
        return ours
    if isinstance(theirs, Reason):
        return theirs
    try:
        return tokenizer_mismatch(ours, theirs)
    except ModelError as error:
        return Reason(error.code, error.params)


def _pair(target: ModelEntry, draft: ModelEntry) -> tuple[str, ...]:
    """Return the key of a result: both folders and, as far as sizes show, their content."""
    return (*_content(target), *_content(draft))


def _content(entry: ModelEntry) -> tuple[str, str, str]:
    return str(entry.path), str(entry.size_bytes), str(entry.status)
