"""Which of the models here can draft for another. Tokenizers are slow to read, so what came of a pair is remembered.

A page does not wait for all of them: what is not known in time is checked on, and known when somebody looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from omlx.errors import ModelError, Reason
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.package.compatibility import Tokenizer, checkpoint_mismatch, tokenizer_mismatch
from omlx.models.package.tokenizer import read_tokenizer

WITHIN_S: Final = 1.5

Verdict: TypeAlias = Reason | None
"""Why not; None for a draft that fits."""


class Fitting:
    """`within_s` is how long whoever asks waits; `read` reads the tokenizer of a model and raises ModelError."""

    def __init__(
        self, within_s: float = WITHIN_S, read: Callable[[ModelEntry], Tokenizer] = read_tokenizer
    ) -> None:
        self._within_s = within_s
        self._read = read
        self._verdicts: dict[tuple[str, ...], Verdict] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}

    async def of(self, target: ModelEntry, drafts: Sequence[ModelEntry]) -> dict[str, Verdict]:
        """The verdict on each draft, by its id, as far as it is known in time."""
        if any(_pair(target, draft) not in self._verdicts for draft in drafts):
            check = self._checks.get(target.id)
            if check is None or check.done():
                check = self._checks[target.id] = asyncio.create_task(self._check(target, drafts))
            await asyncio.wait([check], timeout=self._within_s)
            if check.done():
                check.result()
        known = [(draft, _pair(target, draft)) for draft in drafts]
        return {draft.id: self._verdicts[pair] for draft, pair in known if pair in self._verdicts}

    async def _check(self, target: ModelEntry, drafts: Sequence[ModelEntry]) -> None:
        """What files tell comes first, for all of them; then tokenizers, the target's read once."""
        unknown = [draft for draft in drafts if _pair(target, draft) not in self._verdicts]
        reasons = [_unusable(draft) or checkpoint_mismatch(target, draft) for draft in unknown]
        told = list(zip(unknown, reasons, strict=True))
        self._verdicts |= {
            _pair(target, draft): reason for draft, reason in told if reason is not None
        }
        candidates = [draft for draft, reason in told if reason is None]
        if not candidates:
            return
        ours = await asyncio.to_thread(self._tokenizer, target)
        for draft in candidates:
            theirs = await asyncio.to_thread(self._tokenizer, draft)
            self._verdicts[_pair(target, draft)] = await asyncio.to_thread(_compared, ours, theirs)

    def _tokenizer(self, entry: ModelEntry) -> Tokenizer | Reason:
        try:
            return self._read(entry)
        except ModelError as error:
            return Reason(error.code, error.params)


def _unusable(draft: ModelEntry) -> Verdict:
    """What is wrong with a model itself, where that is not something that drafts are named by."""
    named = draft.reason is None or draft.reason.code in ("model.head_only", "model.gguf_only")
    return None if draft.status is Status.USABLE or named else draft.reason


def _compared(ours: Tokenizer | Reason, theirs: Tokenizer | Reason) -> Verdict:
    if isinstance(ours, Reason):
        return ours
    if isinstance(theirs, Reason):
        return theirs
    try:
        return tokenizer_mismatch(ours, theirs)
    except ModelError as error:
        return Reason(error.code, error.params)


def _pair(target: ModelEntry, draft: ModelEntry) -> tuple[str, ...]:
    """What a verdict depends on: folders, and what lies in them now as far as sizes tell."""
    return tuple(
        str(part) for each in (target, draft) for part in (each.path, each.size_bytes, each.status)
    )
