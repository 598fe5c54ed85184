"""Carries out plans on the device: cache operations, forward passes, sampling. Decides nothing.

`launch` builds and dispatches a step without waiting for it; `read` waits. One step may be launched
on top of another that has not been read: its windows hold LAST where the host does not know the
token yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from omlx.engine.device.caches import CacheTable
from omlx.engine.device.gpu import on_gpu
from omlx.engine.device.launch import ForwardPass, Launch, non_finite, read_pass
from omlx.engine.device.model import Cache, Listener, MakeCache, Model
from omlx.engine.device.rewind import traits
from omlx.engine.device.sampling import Draw, RowSampler, draw, logprobs_of, permit, process
from omlx.engine.device_errors import DEVICE, isolate
from omlx.engine.step.masking import masks_along
from omlx.engine.step.plan import (
    LAST,
    CacheOp,
    Drop,
    Evict,
    Filter,
    Forget,
    Forward,
    Loaded,
    Look,
    Merge,
    Open,
    Read,
    Save,
    Step,
    Window,
)
from omlx.engine.step.row import CacheSizes
from omlx.engine.types import Traits
from omlx.engine.vision.reader import Vision


class Runner:
    """Owns the target's caches. `vocab_size` is the tokenizer's length: logits are cut to it.

    `whole` are the traits of the whole model where this process holds some of its layers only.
    `vision` None: the model reads no images. `prefill_first` is what `Limits` says. The `listener`,
    if there is one, is given the hidden states of every pass.
    """

    prefill_first: int | None = None

    def __init__(
        self,
        model: Model,
        vocab_size: int,
        make_cache: MakeCache,
        whole: Traits | None = None,
        vision: Vision | None = None,
    ) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.make_cache = make_cache
        self.caches = CacheTable(make_cache)
        self.sizes: CacheSizes = self.caches
        self.traits = whole or traits(make_cache())
        self.vision = vision
        self.listener: Listener | None = None
        self._rows: dict[int, Open] = {}
        self._samplers: dict[int, RowSampler] = {}
        self._last: dict[tuple[int, ...], mx.array] = {}  # samples of the newest step, by rows

    def launch(self, step: Step) -> Launch:
        """Dispatch a step. Masks are left as they are.

        An operation or a pass that raises fails its own rows only; `read` reports them.
        """
        launch = Launch(step.plan, DEVICE.seen)
        if step.plan.ops:
            self._apply(step, launch)
        if step.plan.prompts:
            mx.reset_peak_memory()
            launch.held = mx.get_active_memory()
        self.caches.forget_marks()
        last: dict[tuple[int, ...], mx.array] = {}
        for forward in step.plan.forwards:
            launched = self._forward(forward, step, launch.failed)
            launch.passes.append(launched)
            if launched.sampled is not None and not step.plan.drafts:
                last[launched.forward.rows] = launched.sampled
        self._last = last
        return launch

    def read(self, launch: Launch, *, last: bool = False) -> dict[int, Read]:
        """Wait for all of a step, prefill chunks included. Return what it sampled, by row.

        `last`: no step was launched on top. Then a GPU is waited for as a whole: it reports arrays
        as computed a moment before it reports that a pass in front of them has failed.
        """
        synchronize = last and on_gpu()
        if launch.moved or synchronize:
            with isolate(waits=True):  # moved payloads are forgotten with the step
                mx.eval([payload.arrays for payload in launch.moved.values()])
                if synchronize:
                    mx.synchronize()
        for row, computed in launch.looks:
            with isolate(waits=True) as outcome:
                mx.eval(computed)
            if outcome.error is not None:
                launch.failed[row] = outcome.error
        reads: dict[int, Read] = {}
        if launch.failed:
            reads.update({row: Read(error=error) for row, error in launch.failed.items()})
        for launched in launch.passes:
            rows = launched.forward.rows
            if launched.error is not None:
                reads.update(dict.fromkeys(rows, Read(error=launched.error)))
                continue
            with isolate(waits=True) as outcome:  # a pass that failed raises when it is read
                reads.update(zip(rows, read_pass(launched), strict=True))
                launched.failed = non_finite(launched) | launched.failed
            if outcome.error is not None:
                launched.lost = outcome.error
                reads.update(dict.fromkeys(rows, Read(error=outcome.error)))
            if launched.failed:
                reads.update({row: Read(error=error) for row, error in launched.failed.items()})
        if launch.held is not None:
            launch.peak_bytes = mx.get_peak_memory() - launch.held
        return reads

    def sibling(self) -> Runner:
        """Return a runner over the same model with caches of its own."""
        vision = None if self.vision is None else self.vision.sibling()
        return Runner(self.model, self.vocab_size, self.make_cache, self.traits, vision)

    def _apply(self, step: Step, launch: Launch) -> None:
        failed = launch.failed
        for op in step.plan.ops:
            if isinstance(op, Save) and op.row in failed:
                continue  # the content of a failed row is unproven
            with isolate() as outcome:
                if isinstance(op, Look):
                    assert self.vision is not None
                    computed = self.vision.look(op, step.images.get(op.image))
                    launch.looks.append((op.row, computed))
                else:
                    self._apply_one(op, step.loads)
            if outcome.error is not None:
                failed.update(dict.fromkeys(self._rows_to_fail(op), outcome.error))
        launch.moved = self.caches.kept.take_moved()

    def _apply_one(self, op: CacheOp, loads: Mapping[int, Loaded]) -> None:
        self.caches.apply(op, loads)
        if isinstance(op, Open):
            self._rows[op.row] = op
            self._samplers[op.row] = RowSampler(op.sampling, self.vocab_size)
        elif isinstance(op, Drop):
            self._rows.pop(op.row, None)
            self._samplers.pop(op.row, None)
        elif isinstance(op, Forget) and self.vision is not None:
            self.vision.forget(op)

    def _rows_to_fail(self, op: CacheOp) -> Iterable[int]:
        """The rows that end if an operation fails."""
        if isinstance(op, Merge):
            return op.rows
        if isinstance(op, Forget):
            return ()
        return self.caches.members if isinstance(op, Filter | Evict) else (op.row,)

    def _forward(
        self, forward: Forward, step: Step, failed: Mapping[int, Exception]
    ) -> ForwardPass:
        rows = forward.rows
        launched = ForwardPass(forward)
        if step.masks:
            launched.masks = {row: step.masks[row] for row in rows if row in step.masks}
        if failed:
            launched.failed = {row: failed[row] for row in rows if row in failed}
        # The others of a batch are read beside a row that could not be rolled back.
        holds = forward.batched and tuple(self.caches.members) == rows
        if len(launched.failed) > (len(rows) - 1 if holds else 0):
            launched.error = next(iter(launched.failed.values()))
        else:
            with isolate() as outcome:
                if forward.windows[0].sample:
                    self._decode(forward, launched, step.drafts)
                else:
                    self._prefill(forward.windows[0], launched)
            launched.error = outcome.error
            if outcome.error is not None:  # nothing of it is read, and its memory is needed
                launched.sampled = launched.peaks = launched.done = launched.logprobs = None
        return launched

    def _prefill(self, window: Window, launched: ForwardPass) -> None:
        tokens = mx.array(self._known(window), mx.uint32)
        logits = self.caches.read(launched.forward, partial(self._logits, (window,), tokens[None]))
        if window.next_token is not None:
            following = mx.concatenate([tokens[1:], mx.array([window.next_token], mx.uint32)])
            top = self._rows[window.row].prompt_logprobs or 0
            self._score(launched, logits[0], following, top)
        states = [layer.state for layer in self.caches.single[window.row].layers]
        launched.done = _done(states)
        mx.async_eval(states, launched.done, *(launched.logprobs or ()))

    def _decode(
        self, forward: Forward, launched: ForwardPass, drafts: Mapping[int, mx.array]
    ) -> None:
        """Read the windows of a single row, or of the batch, padded to the widest; sample."""
        windows = forward.windows
        for window in windows:
            if window.draft_n and window.draft is None:
                launched.drafts[window.row] = self._draft(window, drafts)
        tokens = self._tokens(forward, launched.drafts)
        marked = self.traits.recurrent and any(
            self.traits.replays(window.width) for window in windows
        )
        run = partial(self._logits, windows, tokens)
        logits = self.caches.read(forward, run, marked=marked)  # [rows, widest, V]
        samplers = [self._samplers[row] for row in forward.rows]
        bare = all(map(attrgetter("bare"), samplers))
        draws: list[Draw] = []
        for i, window in enumerate(() if bare else windows):
            for at in range(window.pending, window.pending + window.draft_n + 1):
                history = None
                if samplers[i].penalised:
                    history = self._history(window, tokens[i], at)
                draws.append(Draw(samplers[i], window.start + at, history))
        self._sample(launched, _sampled_places(logits, windows), draws)

    def _logits(self, windows: Sequence[Window], tokens: mx.array, cache: Cache) -> mx.array:
        """Read the ids `tokens` of windows. Return logits, both [rows, widest, …]."""
        if self.vision is not None:
            spans = [self._rows[window.row].spans for window in windows]
            if any(spans) and len(windows) == 1:
                return self.vision.read(tokens[0], cache, windows[0].start, spans[0])
            if any(spans):
                cache = self.vision.batch(cache, spans)
        if self.listener is None:
            return self.model(tokens, cache=cache)
        hidden = self.listener.parts.body(tokens, cache=cache)
        self.listener.listen(windows, tokens, hidden)
        return self.listener.parts.score(hidden)

    def _newest(self, rows: tuple[int, ...]) -> mx.array:
        """The ids [rows] that the step in flight samples: the host does not know them yet."""
        return self._last[rows]

    def _draft(self, window: Window, drafts: Mapping[int, mx.array]) -> mx.array:
        """The ids [draft_n] of a window's draft that is on the device only."""
        return drafts[window.row]

    def _score(
        self, launched: ForwardPass, logits: mx.array, following: mx.array, top: int
    ) -> None:
        """Take the logprobs of a prompt's ids `following` [width] from `logits` [width, V]."""
        launched.logprobs = logprobs_of(logits[:, : self.vocab_size], following, top)

    def _sample(self, launched: ForwardPass, logits: mx.array, draws: list[Draw]) -> None:
        """Sample every row of `logits` [rows, V]; no `draws`: all are greedy without processors."""
        if logits.shape[-1] > self.vocab_size:
            logits = logits[:, : self.vocab_size]
        launched.peaks = logits.max(axis=-1)  # NaN is the largest, wherever it is
        allowed = self._allowed(launched, logits) if launched.masks else None
        if draws:
            logits = process(logits, draws)
        choices = logits if allowed is None else permit(logits, allowed)
        sampled = launched.sampled = draw(choices, draws) if draws else mx.argmax(choices, axis=-1)
        tops = [self._rows[row].top_logprobs for row in launched.forward.rows]
        if tops.count(None) < len(tops):
            most = max(top for top in tops if top is not None)
            launched.logprobs = logprobs_of(logits, sampled, most)
        drafts = launched.drafts.values()
        mx.async_eval(sampled, launched.peaks, *(launched.logprobs or ()), *drafts)

    def _allowed(self, launched: ForwardPass, logits: mx.array) -> list[bytes | None]:
        """The mask of every row of logits, computed while the device is busy with the pass."""
        mx.async_eval(logits)
        allowed: list[bytes | None] = []
        for window in launched.forward.windows:
            masks: list[bytes | None] = [None] * (window.draft_n + 1)
            mask = launched.masks.get(window.row)
            if mask is not None:
                with isolate() as outcome:
                    masks = masks_along(mask, window.draft or ())
                if outcome.error is not None:
                    launched.failed[window.row] = outcome.error
            allowed += masks
        return allowed

    def _tokens(self, forward: Forward, drafts: Mapping[int, mx.array]) -> mx.array:
        """The ids that windows read, [rows, widest]."""
        windows = forward.windows
        if windows[0].tokens == LAST:  # the rows of a pass are all in flight, or none is
            return self._newest(forward.rows)[:, None]
        widest = max(map(attrgetter("width"), windows))
        rows: list[list[int]] = []
        for window in windows:
            known = [*self._known(window), *(window.draft or ())]
            rows.append(known + [0] * (widest - len(known)))
        tokens = mx.array(rows, mx.uint32)
        for i, window in enumerate(windows):
            if window.row in drafts:
                tokens[i, window.pending : window.pending + window.draft_n] = drafts[window.row]
        return tokens

    def _known(self, window: Window) -> tuple[int, ...]:
        """The pending ids of a window, as the model can embed them."""
        tokens = cast(tuple[int, ...], window.tokens)
        return tokens if self.vision is None else self.vision.ids(tokens)

    def _history(self, window: Window, tokens: mx.array, upto: int) -> mx.array:
        """The tokens that penalties see at a position, as if the draft up to it were accepted."""
        known = mx.concatenate([mx.array(window.history, mx.uint32), tokens[:upto]])
        return known[-self._rows[window.row].sampling.history :]


def _sampled_places(logits: mx.array, windows: Sequence[Window]) -> mx.array:
    """Return the logits [places, V] to sample from, of `logits` [rows, widest, V]: those behind the
    newest known token and each draft token of every window.
    """
    if logits.shape[1] == 1:
        return logits[:, 0]
    places = []
    for row, window in zip(logits, windows, strict=True):
        places.append(row[window.pending - 1 : window.pending + window.draft_n])
    return mx.concatenate(places) if len(places) > 1 else places[0]


def _done(states: list[Any]) -> mx.array:
    """An array of its own that is computed when all arrays of a cache are: to hold these until the
    pass is read would force a copy of each at the next write."""
    leaves = cast(list[tuple[str, object]], tree_flatten(states))
    arrays = [leaf for _, leaf in leaves if isinstance(leaf, mx.array) and leaf.size]
    firsts = [array[(0,) * array.ndim].astype(mx.float32) for array in arrays]
    return mx.stack(firsts or [mx.zeros(())])
