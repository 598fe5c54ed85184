"""Pairs of a mode and plain decoding, trial by trial.

    trial 0   the first request that this mode ever sees: reported apart; warms up the others
    trial 1   case 1: A B   case 2: B A   case 3: A B …      all cases, then the next trial,
    trial 2   case 1: B A   case 2: A B   case 3: B A …      in alternating order

Every trial asks new questions; both sides of a pair answer the same ones.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from omlx.bench.drive import Driven, drive, request, settle
from omlx.bench.progress import Progress
from omlx.bench.prompts import encode_chat
from omlx.bench.speculation.modes import PLAIN, LearnedStates, Mode
from omlx.bench.subject import Subject
from omlx.bench.workloads import Workload, questions
from omlx.engine.types import Request
from omlx.measure.sample import Sample, total
from omlx.measure.spread import run_pair

COLD: Final = 0
"""Number of the first trial."""

Group = tuple[Request, ...]
"""Requests that run together."""


@dataclass(frozen=True, slots=True)
class SpeculationCase:
    """One mode against plain decoding; `role` names the model in reports.

    `prepare` is called before a group of requests runs, and before the model is asked again for
    the scores of one of its answers.
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
    """What one trial asked and both sides' outcome, each by group."""

    groups: tuple[Group, ...]
    ours: tuple[Driven, ...]
    theirs: tuple[Driven, ...]

    @property
    def our_sample(self) -> Sample:
        return total(driven.sample for driven in self.ours)

    @property
    def their_sample(self) -> Sample:
        return total(driven.sample for driven in self.theirs)


@dataclass(slots=True)
class CaseTrials:
    """A case and its trials that were finished in time."""

    case: SpeculationCase
    cold: Trial | None = None
    trials: list[Trial] = field(default_factory=list)


def measure(
    cases: Sequence[SpeculationCase], trials: int, progress: Progress, deadline: float | None = None
) -> list[CaseTrials]:
    """Run all pairs, each a unit of `progress`, until `deadline` (monotonic seconds) has passed.

    An interrupt ends it early too, and keeps the finished pairs.
    """
    measured = [CaseTrials(case) for case in cases]
    try:
        for number in range(COLD, trials + 1):
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
    """Return what a trial asks, in groups that run together, as plain requests."""
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
