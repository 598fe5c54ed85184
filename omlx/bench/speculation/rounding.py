"""`omlx bench exact`: every mode against plain decoding, token by token, in weights of any type.

Kernels of different shapes round differently, so two candidates that nearly tie may change places. Every answer that
is not plain decoding's is listed with its first difference and how near a tie it was there, as plain decoding saw it.
One that was none is a bug. Modes that adapt are told that wide passes cost little, so that they draft where they can:
what is asked is not whether it pays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from typing import Final

import mlx.core as mx

from omlx.bench.arguments import add, not_negative, one_of, positive
from omlx.bench.exact import Parting, parting
from omlx.bench.progress import Progress
from omlx.bench.report import table, write_json
from omlx.bench.result import Json
from omlx.bench.sides import drive
from omlx.bench.speculation.imagined import imagined
from omlx.bench.speculation.modes import MODES, PLAIN, Minds, Mode, chosen
from omlx.bench.speculation.trials import Case, requests
from omlx.bench.subject import Subject, read_subject
from omlx.bench.workloads import WORKLOADS
from omlx.engine.types import Request

WARM: Final = 0.8
"""What is asked greedily is asked once more at this temperature."""

CONTEXT: Final = 400
TOLERANCE: Final = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""How far apart two candidates may be, in logits, for rounding to decide between them; by the type of activations."""


@dataclass(frozen=True, slots=True)
class NearTie(Parting):
    """Where a mode's answer parts from plain decoding's."""

    mode: str
    workload: str
    temperature: float

    def __str__(self) -> str:
        place = f"{self.mode}, {self.workload}, T={self.temperature:g}, token {self.token}"
        return f"{place}: best two {self.margin:.4f} apart, the one that came {self.apart:.4f}"


@dataclass(frozen=True, slots=True)
class Compared:
    """What one mode said, all questions together, in answers and tokens."""

    mode: str
    answers: int
    tokens: int
    proposed: int
    accepted: int
    near_ties: tuple[NearTie, ...]

    @property
    def farthest(self) -> float:
        return max((each.apart for each in self.near_ties), default=0.0)

    @property
    def cells(self) -> tuple[str, ...]:
        counts = (self.answers, self.tokens, self.proposed, self.accepted, len(self.near_ties))
        return (self.mode, *map(str, counts), f"{self.farthest:.4f}" if self.near_ties else "")


def compare(
    subject: Subject, modes: Seq[Mode], asked: Seq[tuple[str, Request]], progress: Progress
) -> list[Compared]:
    """Ask every mode, and plain decoding, the same. `asked` are requests with the names of their workloads; every
    answer of a mode is a unit of `progress`."""
    minds = Minds(subject, None, imagined)
    progress.runs(PLAIN.name)
    plain = [_answer(subject, minds, PLAIN, one) for _, one in asked]
    found = []
    for mode in modes:
        proposed = accepted = tokens = 0
        ties = []
        for (workload, one), (reference, _, _) in zip(asked, plain, strict=True):
            progress.runs(f"{mode.name}, {workload}")
            answer, drafted, right = _answer(subject, minds, mode, one)
            proposed, accepted, tokens = proposed + drafted, accepted + right, tokens + len(answer)
            if (tie := parting(subject, one, reference, answer)) is not None:
                place = (tie.token, tie.margin, tie.apart)
                ties.append(NearTie(*place, mode.name, workload, one.sampling.temperature))
            progress.tick()
        found.append(Compared(mode.name, len(asked), tokens, proposed, accepted, tuple(ties)))
    return found


def questions(
    subject: Subject, workloads: Seq[str], trials: int, context: int, longest: int | None = None
) -> Iterator[tuple[str, Request]]:
    """Requests with the names of their workloads; those at temperature 0 come once more at `WARM`.

    `context` and the `longest` answer are in tokens.
    """
    minds = Minds(subject, None)
    for workload in (each for each in WORKLOADS if each.name in workloads):
        case = Case("model", subject, minds, workload, PLAIN, 1, context)
        for asked in (
            one for trial in range(trials) for group in requests(case, trial) for one in group
        ):
            assert asked.max_tokens is not None
            one = replace(asked, max_tokens=min(asked.max_tokens, longest or asked.max_tokens))
            yield workload.name, one
            if one.sampling.temperature == 0.0:
                yield workload.name, replace(one, sampling=replace(one.sampling, temperature=WARM))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `omlx bench exact`."""
    workloads, modes = tuple(w.name for w in WORKLOADS), tuple(m.name for m in MODES)
    add(parser, "--model", "--draft")
    parser.add_argument(
        "--workloads",
        type=one_of(workloads),
        default=workloads,
        metavar="NAME,…",
        help="of bench spec",
    )
    parser.add_argument(
        "--modes", type=one_of(modes), metavar="NAME,…", help=f"of {','.join(modes)}"
    )
    parser.add_argument(
        "--trials", type=positive, default=1, metavar="N", help="questions a workload, about"
    )
    parser.add_argument(
        "--context", type=positive, default=CONTEXT, metavar="N", help="tokens of prompt and answer"
    )
    parser.add_argument("--tokens", type=positive, metavar="N", help="longest answer")
    add(parser, "--dtype", "--quantize", "--json")
    parser.add_argument(
        "--tolerance",
        type=not_negative,
        metavar="LOGITS",
        help="else by the type: " + _tolerances(),
    )


def run(args: argparse.Namespace) -> int:
    """Compare, print, write. Returns the exit status: 1 if a difference was no near-tie, 2 if models do not fit."""
    try:
        modes = chosen(args.modes, draft=args.draft is not None)
        subject = read_subject(args.model, args.draft, dtype=args.dtype, bits=args.quantize)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    tolerance = tolerance_of(subject) if args.tolerance is None else args.tolerance
    asked = list(questions(subject, args.workloads, args.trials, args.context, args.tokens))
    with Progress(len(modes) * len(asked), "answer") as progress:
        found = compare(subject, modes, asked, progress)
    record: Json = {
        "models": subject.describe(),
        "tolerance": tolerance,
        "modes": [asdict(each) for each in found],
    }
    write_json(args.json, record)
    head = ("mode", "answers", "tokens", "drafted", "accepted", "differ", "farthest")
    sys.stdout.write(table([head, *(each.cells for each in found)]) + "\n")
    for tie in (tie for each in found for tie in each.near_ties):
        sys.stdout.write(f"First difference: {tie}\n")
    exact = all(each.farthest <= tolerance for each in found)
    sys.stdout.write(
        f"{'All within' if exact else 'NOT all within'} the tolerance of {tolerance:g} logits.\n"
    )
    return 0 if exact else 1


def tolerance_of(subject: Subject) -> float:
    """By what the model computes in, which for quantized weights is the type of their scales."""
    logits: mx.array = subject.model(mx.zeros((1, 1), mx.uint32))
    return TOLERANCE[str(logits.dtype).removeprefix("mlx.core.")]


def _answer(
    subject: Subject, minds: Minds, mode: Mode, one: Request
) -> tuple[tuple[int, ...], int, int]:
    """The tokens of an answer, and how many were drafted and accepted. Raises what the request failed with."""
    minds.enter("", mode, random_draft=False)
    driven = drive(subject.loop, [replace(one, speculation=mode.asks)])
    for error in driven.errors.values():
        raise error
    return driven.run.tokens[0], driven.run.proposed, driven.run.accepted


def _tolerances() -> str:
    return ", ".join(f"{value:g} {name}" for name, value in TOLERANCE.items())
