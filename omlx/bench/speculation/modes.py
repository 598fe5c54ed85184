"""The modes: ways to speculate, each requested as an API client would request it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

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
FIXED_LENGTHS: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Mode:
    """`draft_length` is the fixed number of tokens per round; None if the policy decides."""

    name: str
    speculation: Speculation
    draft_length: int | None = None

    @property
    def needs_draft(self) -> bool:
        """Whether it cannot run without a draft model."""
        return any(clause.name == "draft" for clause in self.speculation.strategy.clauses)


def _fixed(length: int) -> Mode:
    return Mode(f"draft {length}", Speculation(parse("draft"), DraftLength.exactly(length)), length)


MODES: Final = (
    *map(_fixed, FIXED_LENGTHS),
    Mode("draft", Speculation(parse("draft"))),
    Mode("ngram", Speculation(parse("ngram"))),
    Mode("chain", Speculation(parse("ngram;draft"))),
    Mode(AUTO, Speculation(parse("auto"))),
)
MODE_NAMES: Final = tuple(mode.name for mode in MODES)
PLAIN: Final = Mode(OFF, Speculation(parse("off")))


def chosen_modes(names: tuple[str, ...] | None, *, draft: bool) -> tuple[Mode, ...]:
    """Return the modes of these names, or all that can run if `names` is None.

    Raises ValueError for a mode that needs a draft model where there is none.
    """
    if names is None:
        return tuple(mode for mode in MODES if draft or not mode.needs_draft)
    modes = tuple(mode for mode in MODES if mode.name in names)
    impossible = [mode.name for mode in modes if mode.needs_draft and not draft]
    if impossible:
        raise ValueError(
            f"{', '.join(impossible)}: without a draft model, which --draft names, "
            "there is nothing to measure"
        )
    return modes


class LearnedStates:
    """What the engine has learned, by workload and mode: costs, acceptance, drafters' caches.

    One engine serves all modes. `enter` gives it the state of one of them, which starts with
    `cost_model()` and lives from request to request, as in a server.
    """

    def __init__(
        self,
        subject: Subject,
        random_draft: Any | None,
        cost_model: Callable[[], CostModel] = CostModel,
    ) -> None:
        self._subject = subject
        self._random_draft = random_draft
        self._cost_model = cost_model
        self._off = subject.loop.scheduler.speculator.off_reason
        self._speculators: dict[tuple[str, str], Speculator] = {}

    def enter(self, workload: str, mode: Mode, *, random_draft: bool) -> Speculator:
        """Let the engine speculate with what this mode has learned of this workload."""
        loop, key = self._subject.loop, (workload, mode.name)
        if key not in self._speculators:
            draft = self._random_draft if random_draft else self._subject.draft
            cost_model = self._cost_model()
            drafters: list[Drafter] = [NgramDrafter()]
            if draft is not None:
                vocab_size = self._subject.vocab_size
                drafters.append(DraftModel("draft", draft, vocab_size, cache_maker(draft)))
                # A server starts with this estimate too.
                share = weight_bytes(draft) / weight_bytes(self._subject.model)
                cost_model.draft_share = share
            loop.use_drafters(drafters, self._off, cost_model=cost_model)
            self._speculators[key] = loop.scheduler.speculator
        loop.scheduler.planner.speculator = self._speculators[key]
        loop.reset_timing()
        return self._speculators[key]
