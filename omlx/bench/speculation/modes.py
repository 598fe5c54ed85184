"""The ways to speculate that are compared: each is asked for as a request would ask for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_map

from omlx.bench.subject import Subject
from omlx.draft_length import DraftLength
from omlx.engine.model import cache_maker, weight_bytes
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.strategy import parse
from omlx.engine.types import Speculation

OFF: Final = "off"
AUTO: Final = "auto"
FIXED: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Mode:
    """`window` is the fixed number of tokens to draft, or None where the policy decides."""

    name: str
    asks: Speculation
    window: int | None = None

    @property
    def needs_draft(self) -> bool:
        """Whether there is nothing to measure without a draft model."""
        return any(step.name == "draft" for step in self.asks.strategy.steps)


def _fixed(window: int) -> Mode:
    return Mode(f"draft {window}", Speculation(parse("draft"), DraftLength.exactly(window)), window)


MODES: Final = (
    *(_fixed(window) for window in FIXED),
    Mode("draft", Speculation(parse("draft"))),
    Mode("ngram", Speculation(parse("ngram"))),
    Mode("chain", Speculation(parse("ngram;draft"))),
    Mode(AUTO, Speculation(parse("auto"))),
)
PLAIN: Final = Mode(OFF, Speculation(parse("off")))


def chosen(names: tuple[str, ...] | None, *, draft: bool) -> tuple[Mode, ...]:
    """The modes of these names; if there are none, all that can run. Raises ValueError for one that wants a draft model
    where there is no `draft`."""
    if names is None:
        return tuple(mode for mode in MODES if draft or not mode.needs_draft)
    found = tuple(mode for mode in MODES if mode.name in names)
    if not draft and (idle := [mode.name for mode in found if mode.needs_draft]):
        raise ValueError(
            f"{', '.join(idle)}: without a draft model, which --draft names, there is nothing to measure"
        )
    return found


class Minds:
    """What the engine has learned, mode by mode and workload by workload: costs, acceptance, the drafters' caches.

    One engine serves them all. `enter` gives it the mind of one mode, which begins with `costs()` and lives on from
    request to request, as a server's does.
    """

    def __init__(
        self, subject: Subject, random_draft: Any | None, costs: Callable[[], CostModel] = CostModel
    ) -> None:
        self._subject = subject
        self._random_draft = random_draft
        self._costs = costs
        self._off = subject.loop.scheduler.speculator.off
        self._kept: dict[tuple[str, str], Speculator] = {}

    def enter(self, workload: str, mode: Mode, *, random_draft: bool) -> Speculator:
        """Let the engine speculate with what this mode has learned of this workload."""
        loop, key = self._subject.loop, (workload, mode.name)
        if key not in self._kept:
            draft = self._random_draft if random_draft else self._subject.draft
            cost_model = self._costs()
            drafters: list[Drafter] = [NgramDrafter()]
            if draft is not None:
                drafters.append(
                    DraftModel("draft", draft, self._subject.vocab_size, cache_maker(draft))
                )
                cost_model.draft_share = weight_bytes(draft) / weight_bytes(
                    self._subject.model
                )  # as a server has it
            loop.use_drafters(drafters, self._off, cost_model=cost_model)
            self._kept[key] = loop.scheduler.speculator
        loop.scheduler.planner.speculator = self._kept[key]
        loop.reset_timing()
        return self._kept[key]


def untrained(model: Any | None) -> Any | None:
    """A model of the same shape whose weights are noise."""
    if model is None:
        return None
    copied = copy.deepcopy(model)
    keys = iter(mx.random.split(mx.random.key(0), 10_000))
    copied.update(tree_map(lambda weight: _noise(weight, next(keys)), copied.parameters()))
    mx.eval(copied.parameters())
    return copied


def _noise(weight: mx.array, key: mx.array) -> mx.array:
    """Norms (one dimension) and quantized integers stay as they are."""
    if weight.ndim < 2 or not mx.issubdtype(weight.dtype, mx.floating):
        return weight
    scale: float = weight.shape[-1] ** -0.5
    return mx.random.normal(weight.shape, weight.dtype, scale=scale, key=key)
