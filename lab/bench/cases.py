"""Modes, ways to speculate as an API client requests them, in pairs with plain decoding.

    trial 0   the first request of a mode: reported apart; warms up the others
    trial 1   case 1: A B   case 2: B A   case 3: A B …      all cases, then the next trial,
    trial 2   case 1: B A   case 2: A B   case 3: B A …      in alternating order

Every trial asks new questions; both sides of a pair answer the same ones.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from lab.bench.console import Progress, add, one_of, positive
from lab.bench.drive import Driven, drive, request, settle
from lab.bench.series import run_pair
from lab.bench.subject import Subject
from lab.bench.workloads import WORKLOAD_NAMES, Workload, encode_chat, questions
from omlx.draft_length import DraftLength
from omlx.engine.device.model import cache_maker, weight_bytes
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.drafter import Drafter
from omlx.engine.speculation.drafters.draft_model import DraftModel
from omlx.engine.speculation.drafters.ngram import NgramDrafter
from omlx.engine.speculation.speculator import Speculator
from omlx.engine.speculation.strategy import parse
from omlx.engine.types import Request, Speculation
from omlx.measure.sample import Sample, total

OFF: Final = "off"
AUTO: Final = "auto"
FIXED_LENGTHS: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Mode:
    """`draft_length`: fixed tokens per round; None leaves the length to the policy."""

    name: str
    speculation: Speculation
    draft_length: int | None = None

    @property
    def needs_draft(self) -> bool:
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
    """Return the modes called `names`; for None, all that can run.

    Raises ValueError for a mode that needs a draft model when `draft` is false.
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


def add_case_arguments(parser: argparse.ArgumentParser, *, trials: int, context: int) -> None:
    """Add the flags of models, workloads and modes, with defaults `trials` and `context`."""
    add(parser, "--model", "--draft", "--dtype", "--quantize", "--json")
    for flag, names, default in (
        ("--workloads", WORKLOAD_NAMES, WORKLOAD_NAMES),
        ("--modes", MODE_NAMES, None),
    ):
        text = f"of {','.join(names)}"
        parser.add_argument(flag, type=one_of(names), default=default, metavar="NAME,…", help=text)
    for flag, number, text in (
        ("--trials", trials, "default %(default)s"),
        ("--context", context, "tokens of prompt and answer, about"),
    ):
        parser.add_argument(flag, type=positive, default=number, metavar="N", help=text)


class LearnedStates:
    """The engine's learned state by workload and mode: costs, acceptance, drafters' caches.

    The modes share an engine. `enter` swaps in a mode's state, which starts with `cost_model()` and
    persists from request to request, as in a server.
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
        """Swap in the state of `mode` on `workload`, created at first use."""
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


COLD: Final = 0
"""Trial number — the first trial, measured apart."""

Group = tuple[Request, ...]
"""Requests that run together."""


@dataclass(frozen=True, slots=True)
class SpeculationCase:
    """A mode against plain decoding; `role` names the model in reports.

    `prepare` is called before a group of requests runs, and before the model rescores an answer.
    """

    role: str
    subject: Subject
    states: LearnedStates
    workload: Workload
    mode: Mode
    streams: int
    context: int
    prepare: Callable[[Sequence[Request]], None] = lambda group: None

    @property
    def name(self) -> str:
        streams = f" ×{self.streams}" if self.streams > 1 else ""
        return f"{self.role}: {self.workload.name}, {self.mode.name}{streams}"


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial's requests and both sides' outcomes, each by group."""

    groups: tuple[Group, ...]
    ours: tuple[Driven, ...]
    theirs: tuple[Driven, ...]

    @property
    def our_sample(self) -> Sample:
        return total(driven.sample for driven in self.ours)

    @property
    def their_sample(self) -> Sample:
        return total(driven.sample for driven in self.theirs)

    @property
    def answers(self) -> Iterator[tuple[Group, Request, tuple[int, ...], tuple[int, ...]]]:
        """Every request with its group and both sides' answers."""
        for group, ours, theirs in zip(self.groups, self.ours, self.theirs, strict=True):
            answers = zip(group, ours.sample.tokens, theirs.sample.tokens, strict=True)
            for asked, our_answer, their_answer in answers:
                yield group, asked, our_answer, their_answer


@dataclass(slots=True)
class CaseTrials:
    """A case and its finished trials."""

    case: SpeculationCase
    cold: Trial | None = None
    trials: list[Trial] = field(default_factory=list)


def measure(
    cases: Sequence[SpeculationCase], trials: int, progress: Progress, deadline: float | None = None
) -> list[CaseTrials]:
    """Run all pairs, each a unit of `progress`, until `deadline` (monotonic seconds).

    An interrupt ends the measurement early and keeps the finished pairs.
    """
    measured = [CaseTrials(case) for case in cases]
    try:
        for number in range(COLD, trials + 1):
            # Here, so that no collection falls into a timed run.
            gc.collect()
            for position, entry in enumerate(measured):
                if deadline is not None and time.monotonic() > deadline:
                    return measured
                progress.start(entry.case.name)
                trial = _run_trial(entry.case, number, swap=(number + position) % 2 == 1)
                if number == COLD:
                    entry.cold = trial
                else:
                    entry.trials.append(trial)
                progress.tick()
    except KeyboardInterrupt:
        pass
    return measured


def requests(case: SpeculationCase, trial: int) -> tuple[Group, ...]:
    """Return a trial's plain requests, in groups that run together."""
    subject, workload = case.subject, case.workload

    def count(text: str) -> int:
        return len(subject.tokenizer.encode(text))

    plain = []
    asked = questions(workload, trial, case.streams, case.context, count)
    for number, question in enumerate(asked):
        prompt = encode_chat(
            subject.tokenizer,
            question.messages,
            tools=question.tools,
            enable_thinking=question.thinks,
        )
        plain.append(
            request(
                prompt,
                question.longest,
                stop_ids=subject.stop_ids if question.ends else frozenset(),
                temperature=question.temperature,
                seed=1000 * trial + number,
            )
        )
    starts = range(0, len(plain), case.streams)
    return tuple(tuple(plain[start : start + case.streams]) for start in starts)


def _run_trial(case: SpeculationCase, number: int, *, swap: bool) -> Trial:
    groups = requests(case, number)
    ours, theirs = [], []
    for position, group in enumerate(groups):
        case.prepare(group)
        # Sides alternate within a trial, too.
        our_driven, their_driven = run_pair(
            partial(_run, case, case.mode, group),
            partial(_run, case, PLAIN, group),
            swap=(position % 2 == 1) != swap,
        )
        ours.append(our_driven)
        theirs.append(their_driven)
    return Trial(groups, tuple(ours), tuple(theirs))


def _run(case: SpeculationCase, mode: Mode, group: Group) -> Driven:
    state = f"{case.workload.name} ×{case.streams}"
    case.states.enter(state, mode, random_draft=case.workload.random_draft)
    settle()
    asked = [replace(plain, speculation=mode.speculation) for plain in group]
    return drive(case.subject.loop, asked)
