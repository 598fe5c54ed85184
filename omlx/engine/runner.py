"""Carries out plans on the device: cache operations, forward passes, sampling. Decides nothing.

`launch` builds and dispatches a step without waiting for it; `read` waits. One step may be launched on top of another
that has not been read: its windows say LAST where the host does not know the token yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import mlx.core as mx

from omlx.engine.isolation import isolate
from omlx.engine.kv import CacheTable
from omlx.engine.masking import masks_along
from omlx.engine.model import MakeCache, Model
from omlx.engine.plan import (
    LAST,
    CacheOp,
    Drop,
    Forward,
    LogprobRows,
    Open,
    Plan,
    Read,
    Save,
    ScheduledStep,
    Window,
)
from omlx.engine.rewind import traits
from omlx.engine.sampling import Draw, RowSampler, draw, logprobs_of, permit, process
from omlx.engine.types import TokenMask

CLEAR_EVERY: Final = 256


@dataclass(slots=True)
class _Row:
    sampler: RowSampler
    top_logprobs: int | None
    prompt_logprobs: int | None


@dataclass(slots=True)
class _Part:
    """One forward in flight. sampled: [rows]; draft: [draft_n]; logprobs as `logprobs_of` returns them, of what was
    sampled or of a prompt. `masks` are those of its rows that have one; what they raised is in `failed`, and ends that
    row alone."""

    forward: Forward
    masks: Mapping[int, TokenMask] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    sampled: mx.array | None = None
    draft: mx.array | None = None
    logprobs: tuple[mx.array, mx.array, mx.array] | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Launch:
    """A step in flight."""

    plan: Plan
    parts: list[_Part] = field(default_factory=list)
    failed: dict[int, Exception] = field(default_factory=dict)


class Runner:
    """Owns the target's caches. `vocab_size` is the tokenizer's length: logits are cut to it."""

    def __init__(self, model: Model, vocab_size: int, make_cache: MakeCache) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.make_cache = make_cache
        self.caches = CacheTable(make_cache)
        self.traits = traits(make_cache())
        self._rows: dict[int, _Row] = {}
        self._last: dict[tuple[int, ...], mx.array] = {}
        self._steps = 0

    def launch(self, step: ScheduledStep) -> Launch:
        """Dispatch a step. Masks are left as they are.

        An operation or a forward that raises fails its own rows only; they are reported by `read`.
        """
        plan = step.plan
        launch = Launch(plan)
        self._apply(plan.ops, launch.failed)
        self.caches.forget_marks()
        last: dict[tuple[int, ...], mx.array] = {}
        for forward in plan.forwards:
            part = self._forward(forward, step, launch.failed)
            launch.parts.append(part)
            if part.sampled is not None and all(w.draft_n == 0 for w in forward.windows):
                last[tuple(w.row for w in forward.windows)] = part.sampled
        self._last = last
        self._steps += 1
        if self._steps % CLEAR_EVERY == 0:
            mx.clear_cache()
        return launch

    def read(self, launch: Launch) -> dict[int, Read]:
        """Wait for a step and bring back what it sampled, by row. Prefill chunks are in it too, with nothing read."""
        reads: dict[int, Read] = {row: Read(error=error) for row, error in launch.failed.items()}
        for part in launch.parts:
            rows = [w.row for w in part.forward.windows]
            if part.error is not None:
                reads.update({row: Read(error=part.error) for row in rows})
                continue
            with isolate() as outcome:  # a failed pass raises when its result is read
                reads.update(zip(rows, _read_part(part), strict=True))
            if outcome.error is not None:
                reads.update({row: Read(error=outcome.error) for row in rows})
            reads.update({row: Read(error=error) for row, error in part.failed.items()})
        return reads

    def _apply(self, ops: Iterable[CacheOp], failed: dict[int, Exception]) -> None:
        for op in ops:
            if isinstance(op, Save) and op.row in failed:
                continue  # its content is unproven
            with isolate() as outcome:
                self._apply_one(op)
            if outcome.error is not None:
                rows = getattr(op, "rows", None) or (
                    (op.row,) if hasattr(op, "row") else self.caches.members
                )
                failed.update(dict.fromkeys(rows, outcome.error))

    def _apply_one(self, op: CacheOp) -> None:
        self.caches.apply(op)
        if isinstance(op, Open):
            self._rows[op.row] = _Row(
                RowSampler(op.sampling, self.vocab_size), op.top_logprobs, op.prompt_logprobs
            )
        elif isinstance(op, Drop):
            self._rows.pop(op.row, None)

    def _forward(
        self,
        forward: Forward,
        step: ScheduledStep,
        failed: Mapping[int, Exception],
    ) -> _Part:
        masks = step.masks
        part = _Part(forward, {w.row: masks[w.row] for w in forward.windows if w.row in masks})
        if any(w.row in failed for w in forward.windows):
            part.error = next(failed[w.row] for w in forward.windows if w.row in failed)
            return part
        with isolate() as outcome:
            if forward.batched:
                self._batch_pass(forward, part)
            else:
                self._single_pass(forward.windows[0], part, step.drafts)
        part.error = outcome.error
        return part

    def _single_pass(self, window: Window, part: _Part, drafts: Mapping[int, mx.array]) -> None:
        cache = self.caches.single[window.row]
        if window.draft_n:
            part.draft = (
                drafts[window.row] if window.draft is None else mx.array(window.draft, mx.uint32)
            )
            if self.traits.recurrent:
                self.caches.mark(window.row)
        tokens = self._tokens(window, part.draft)
        self.caches.advance(window.row, window.width)
        if not window.sample:
            logits = self.model(tokens[None], cache=cache)[
                0
            ]  # [tokens, V], computed only if it is looked at
            if window.end is not None:
                following = mx.concatenate([tokens[1:], mx.array([window.end], mx.uint32)])
                part.logprobs = self._scored(
                    logits, following, self._rows[window.row].prompt_logprobs
                )
            mx.async_eval([layer.state for layer in cache], *(part.logprobs or ()))
            mx.clear_cache()
            return
        used = window.width - window.pad
        logits = self.model(tokens[None], cache=cache)[
            0, used - window.draft_n - 1 : used
        ]  # [draft_n + 1, V]
        row = self._rows[window.row]
        first = window.start + window.pending
        draws = [
            Draw(row.sampler, first + i, self._history(window, tokens, window.pending + i))
            for i in range(0 if row.sampler.bare else window.draft_n + 1)
        ]
        self._sample(part, logits, draws)

    def _batch_pass(self, forward: Forward, part: _Part) -> None:
        windows = forward.windows
        rows = tuple(w.row for w in windows)
        if any(w.tokens == LAST for w in windows):
            tokens = self._last[rows]
        else:
            tokens = mx.array([w.tokens[0] for w in windows], mx.uint32)
        for row in rows:
            self.caches.advance(row, 1)
        logits = self.model(tokens[:, None], cache=self.caches.batch)[:, -1]  # [rows, V]
        bare = all(self._rows[row].sampler.bare for row in rows)
        draws = [
            Draw(self._rows[w.row].sampler, w.start + 1, self._history(w, tokens[i : i + 1], 1))
            for i, w in enumerate(() if bare else windows)
        ]
        self._sample(part, logits, draws)

    def _sample(self, part: _Part, logits: mx.array, draws: list[Draw]) -> None:
        """Sample every row of `logits` [rows, V]; without `draws` every row is greedy and has no processors."""
        if logits.shape[-1] > self.vocab_size:
            logits = logits[:, : self.vocab_size]
        allowed = self._allowed(part, logits) if part.masks else None
        logits = process(logits, draws)
        choices = logits if allowed is None else permit(logits, allowed)
        part.sampled = draw(choices, draws) if draws else mx.argmax(choices, axis=-1)
        tops = [self._rows[w.row].top_logprobs for w in part.forward.windows]
        wanted = max((top for top in tops if top is not None), default=None)
        if wanted is not None:
            part.logprobs = logprobs_of(logits, part.sampled, wanted)
        mx.async_eval(
            part.sampled, *(part.logprobs or ()), *([] if part.draft is None else [part.draft])
        )

    def _scored(
        self, logits: mx.array, tokens: mx.array, top: int | None
    ) -> tuple[mx.array, mx.array, mx.array]:
        return logprobs_of(logits[:, : self.vocab_size], tokens, top or 0)

    def _allowed(self, part: _Part, logits: mx.array) -> list[bytes | None]:
        """The masks of every row to sample, told while the device is busy with their pass."""
        mx.async_eval(logits)
        rows: list[bytes | None] = []
        for window in part.forward.windows:
            own: list[bytes | None] = [None] * (window.draft_n + 1)
            mask = part.masks.get(window.row)
            if mask is not None:
                with isolate() as outcome:
                    own = masks_along(mask, window.draft or ())
                if outcome.error is not None:
                    part.failed[window.row] = outcome.error
            rows += own
        return rows

    def _tokens(self, window: Window, draft: mx.array | None) -> mx.array:
        """The ids that a single row's window reads, [width]."""
        if window.tokens == LAST:
            return self._last[(window.row,)]
        pending = mx.array(window.tokens, mx.uint32)
        return (
            pending
            if draft is None
            else mx.concatenate([pending, draft, mx.zeros(window.pad, mx.uint32)])
        )

    def _history(self, window: Window, tokens: mx.array, upto: int) -> mx.array | None:
        """The tokens before a sampled position as the penalties see them: as if the draft so far were accepted."""
        sampler = self._rows[window.row].sampler
        if not sampler.sampling.penalised:
            return None
        known = mx.concatenate([mx.array(window.history, mx.uint32), tokens[:upto]])
        return known[-sampler.sampling.history :]


def _read_part(part: _Part) -> list[Read]:
    windows = part.forward.windows
    logprobs = _read_logprobs(part.logprobs)
    if part.sampled is None:
        return [Read(logprobs=logprobs) for _ in windows]
    sampled = cast(list[int], part.sampled.tolist())
    if part.forward.batched:
        return [
            Read(sampled=(token,), logprobs=None if logprobs is None else logprobs[i : i + 1])
            for i, token in enumerate(sampled)
        ]
    draft = cast(list[int], part.draft.tolist()) if part.draft is not None else []
    return [Read(sampled=tuple(sampled), draft=tuple(draft), logprobs=logprobs)]


def _read_logprobs(arrays: tuple[mx.array, mx.array, mx.array] | None) -> LogprobRows | None:
    if arrays is None:
        return None
    chosen, ids, values = (cast(list[Any], array.tolist()) for array in arrays)
    rows = zip(chosen, ids, values, strict=True)
    return tuple((logprob, tuple(zip(top_ids, top, strict=True))) for logprob, top_ids, top in rows)
