"""A device that fails once, at the nth use of a site; the call that looks first gets the error.

What a failed pass computed reads as if it were good (mlx/error.h). Here it is finite garbage: the
logits name one token, the caches are zeros. The error is thrown once, as mlx throws its own: by the
next launch, as on Metal, or by the next call that waits. `real` lets a kernel fail in mlx itself:
the inverse of a singular matrix, on a CPU; few of these fit into a process, since mlx counts a task
that never ends for each error that a launch throws, and blocks at the tenth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from omlx.engine.device import caches, payloads, runner
from omlx.engine.device.rewind import leaves
from omlx.engine.device.runner import Runner
from omlx.engine.device_errors import DEVICE
from omlx.engine.loop import EngineLoop
from omlx.engine.vision.reader import Features, Vision

OUT_OF_MEMORY = (
    "[METAL] Command buffer execution failed: Insufficient Memory "
    "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
)
INTERACTIVITY = (
    "[METAL] Command buffer execution failed: Impacting Interactivity "
    "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)."
)
CPU = "[Inverse::eval_cpu] LU factorization failed with error code 1"
IGNORED = (
    "[METAL] Command buffer execution failed: Ignored (for causing prior/excessive GPU errors) "
    "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
)
GARBAGE = 3
"""The token that a failed pass names."""


class FailingDevice:
    """The use number `nth` of `site` fails, and the next ones up to `times`.

    With `text`, the next launch throws it; without, the next call that waits throws a CPU's text.
    `struck` counts failures.
    """

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        site: str = "",
        nth: int = 0,
        text: str | None = None,
        times: int = 1,
        *,
        real: bool = False,
    ) -> None:
        self.site, self.nth, self.times, self.struck = site, nth, times, 0
        self.uses, self._now, self._text = 0, "", text
        self._launched = self._kept = False
        self._patch, self._real = patch, real
        patch.setattr(mx, "eval", self._looking(mx.eval))
        patch.setattr(mx, "async_eval", self._looking(mx.async_eval))
        self._spoiling(Runner, "_logits")
        self._after_looks()
        self._during(Runner, "_prefill", "prefill")
        self._during(Runner, "_decode", "decode")
        self._during(Runner, "_draft", "draft")
        for owner, name, site_name in (
            (payloads.Payloads, "keep", "save"),
            (payloads.Payloads, "build", "restore"),
            (payloads.Payloads, "to_record", "dump"),
        ):
            self._before(owner, name, site_name)
        self._before(caches, "read_payloads", "load")
        read_pass = runner.read_pass
        patch.setattr(runner, "read_pass", lambda launched: (self._look(), read_pass(launched))[1])
        DEVICE.reset()

    def serve(self, loop: EngineLoop) -> EngineLoop:
        """Let the passes of a loop's draft model run on this device, as those of all targets do."""
        for drafter in loop.scheduler.speculator.drafters:
            if drafter.kind == "draft" and hasattr(drafter, "_model"):
                drafter._model = self._draft(drafter._model)
        return loop

    def _draft(self, model: Any) -> Callable[..., mx.array]:
        def call(tokens: mx.array, cache: Any = None) -> mx.array:
            logits = model(tokens, cache=cache)
            return self._spoil(logits, cache) if self.strikes("draft") else logits

        return call

    def strikes(self, site: str) -> bool:
        """Count a use of a site; return whether it fails."""
        if site != self.site:
            return False
        self.uses += 1
        failing = self.nth < self.uses <= self.nth + self.times
        self.struck += failing
        return failing

    def fail_next(self) -> None:
        """Let what looks next find an error of before."""
        self._kept = True

    def _good(self) -> mx.array:
        """Whether a pass is good: no."""
        if self._real:
            return mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu)[0, 0] == 1.25
        self._launched = True
        return mx.array(False)

    def _spoil(self, logits: mx.array, cache: Any) -> mx.array:
        good = self._good()

        def spoiled(array: mx.array | None) -> mx.array | None:
            return None if array is None else mx.where(good, array, mx.zeros_like(array))

        for leaf in leaves(cache or []):
            for name in ("keys", "values", "cache"):
                if getattr(leaf, name, None) is not None:
                    setattr(leaf, name, tree_map(spoiled, getattr(leaf, name)))
        garbage = (mx.arange(logits.shape[-1]) == GARBAGE).astype(logits.dtype) * 9.0
        return mx.where(good, logits, mx.broadcast_to(garbage, logits.shape))

    def _look(self) -> None:
        """Throw what is kept."""
        kept, self._kept = self._kept, False
        if kept:
            raise RuntimeError(self._text or CPU)

    def _looking(self, evaluate: Callable[..., None]) -> Callable[..., None]:
        """An evaluation that throws what is kept, and keeps the error of what it launches."""
        waits = evaluate is mx.eval

        def look(*arrays: object) -> None:
            if waits or self._text is not None:
                self._look()
            evaluate(*arrays)
            self._kept, self._launched = self._kept or self._launched, False
            if waits:
                self._look()

        return look

    def _spoiling(self, owner: Any, name: str) -> None:
        """Let passes of targets fail."""
        work = getattr(owner, name)

        def read(runner: Runner, windows: Any, tokens: mx.array, cache: Any) -> mx.array:
            logits: mx.array = work(runner, windows, tokens, cache)
            return self._spoil(logits, cache) if self.strikes(self._now) else logits

        self._patch.setattr(owner, name, read)

    def _after_looks(self) -> None:
        """Let steps of a tower fail: what is looked at then shows nothing."""
        work = Vision.look

        def look(vision: Vision, op: Any, image: Any) -> mx.array:
            computed = work(vision, op, image)
            if self.strikes("look"):
                self.fail_next()
                held = vision._features.get(op.image)
                if held is not None:
                    vision._features[op.image] = Features(mx.zeros_like(held.rows), held.marks)
            return computed

        self._patch.setattr(Vision, "look", look)

    def _during(self, owner: Any, name: str, site: str) -> None:
        work = getattr(owner, name)

        def run(*args: Any, **named: Any) -> Any:
            self._now = site
            try:
                return work(*args, **named)
            finally:
                self._now = ""

        self._patch.setattr(owner, name, run)

    def _before(self, owner: Any, name: str, site: str) -> None:
        """Let a computation fail that the work at a site waits for."""
        work = getattr(owner, name)

        def run(*args: Any, **named: Any) -> Any:
            if self.strikes(site):
                self.fail_next()
            return work(*args, **named)

        self._patch.setattr(owner, name, run)
