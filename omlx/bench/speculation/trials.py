"""Pairs of a mode and plain decoding, trial by trial.

    trial 0   cold: the first request that this mode ever sees. Told apart, and the warm-up of the rest
    trial 1   case 1: A B   case 2: B A   case 3: A B …      all cases, then the next trial, the order alternating
    trial 2   case 1: B A   case 2: A B   case 3: B A …

Every trial asks something new, and both sides of a pair are asked the same.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Final

from omlx.bench.measure import Run, settle, total
from omlx.bench.progress import Progress
from omlx.bench.sides import Driven, drive, request
from omlx.bench.speculation.modes import PLAIN, Minds, Mode
from omlx.bench.speculation.recital import Recital
from omlx.bench.subject import Subject
from omlx.bench.workloads import Question, Workload, questions
from omlx.engine.types import Request

COLD: Final = 0


@dataclass(frozen=True, slots=True)
class Case:
    """One mode against plain decoding. `role` names the model: model or hybrid. `recital`, if any, tells the model
    what to answer."""

    role: str
    subject: Subject
    minds: Minds
    workload: Workload
    mode: Mode
    streams: int
    context: int
    recital: Recital | None = None

    @property
    def name(self) -> str:
        streams = f" ×{self.streams}" if self.streams > 1 else ""
        return f"{self.role}: {self.workload.name}, {self.mode.name}{streams}"

    def rehearse(self, group: Seq[Request]) -> None:
        """Before requests run, and whenever the model is asked what it saw in them."""
        if self.recital is not None:
            self.recital.learn(group)


@dataclass(frozen=True, slots=True)
class Trial:
    """What one trial asked and what came of it on both sides, one `Driven` for every group of rows."""

    asked: tuple[tuple[Request, ...], ...]
    ours: tuple[Driven, ...]
    theirs: tuple[Driven, ...]

    @property
    def our_run(self) -> Run:
        return total(driven.run for driven in self.ours)

    @property
    def their_run(self) -> Run:
        return total(driven.run for driven in self.theirs)


@dataclass(slots=True)
class Measured:
    """A case and the trials that were finished in time."""

    case: Case
    cold: Trial | None = None
    trials: list[Trial] = field(default_factory=list)


def measure(
    cases: Seq[Case], trials: int, progress: Progress, deadline: float | None = None
) -> list[Measured]:
    """Run all pairs, each a unit of `progress`; stop after the pair in which `deadline` (monotonic) passes.

    An interrupt ends it early as well, with what was measured.
    """
    measured = [Measured(case) for case in cases]
    try:
        for trial in range(COLD, trials + 1):
            gc.collect()
            for i, found in enumerate(measured):
                if deadline is not None and time.monotonic() > deadline:
                    return measured
                progress.runs(found.case.name)
                pairs = _pairs(found.case, trial, swap=(trial + i) % 2 == 1)
                if trial == COLD:
                    found.cold = pairs
                else:
                    found.trials.append(pairs)
                progress.tick()
    except KeyboardInterrupt:
        pass
    return measured


def requests(case: Case, trial: int) -> tuple[tuple[Request, ...], ...]:
    """What a trial asks, in groups of rows that run together, as plain requests."""
    encode = case.subject.tokenizer.encode
    asked = questions(
        case.workload, trial, case.streams, case.context, lambda text: len(encode(text))
    )
    whole = [_request(case.subject, question, 1000 * trial + i) for i, question in enumerate(asked)]
    return tuple(tuple(whole[i : i + case.streams]) for i in range(0, len(whole), case.streams))


def _request(subject: Subject, question: Question, seed: int) -> Request:
    return request(
        prompt_ids(subject, question),
        question.longest,
        stop_ids=subject.stop_ids if question.ends else frozenset(),
        temperature=question.temperature,
        seed=seed,
    )


def prompt_ids(subject: Subject, question: Question) -> tuple[int, ...]:
    """The conversation as the model's template writes it, or its texts one after another where there is none."""
    tokenizer = subject.tokenizer
    if not tokenizer.has_chat_template:
        return tuple(
            tokenizer.encode("\n\n".join(message["content"] for message in question.messages))
        )
    return tuple(
        tokenizer.apply_chat_template(
            question.messages,
            tools=question.tools,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=question.thinks,
        )
    )


def _pairs(case: Case, trial: int, swap: bool) -> Trial:
    asked = requests(case, trial)
    ours, theirs = [], []
    for i, group in enumerate(asked):
        case.rehearse(group)
        if (i % 2 == 1) != swap:
            theirs.append(_run(case, PLAIN, group))
            ours.append(_run(case, case.mode, group))
        else:
            ours.append(_run(case, case.mode, group))
            theirs.append(_run(case, PLAIN, group))
    return Trial(asked, tuple(ours), tuple(theirs))


def _run(case: Case, mode: Mode, group: tuple[Request, ...]) -> Driven:
    case.minds.enter(
        f"{case.workload.name} ×{case.streams}", mode, random_draft=case.workload.random_draft
    )
    settle()
    return drive(case.subject.loop, [replace(asked, speculation=mode.asks) for asked in group])
