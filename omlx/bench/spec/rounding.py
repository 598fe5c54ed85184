"""`omlx bench exact`: every mode against plain decoding, token by token, in weights of any type.

Kernels of different shapes round differently, so two candidates that nearly tie may change places. Every answer that
is not plain decoding's is listed with its first difference and how near a tie it was there, as plain decoding saw it.
One that was none is a bug. Modes that adapt are told that wide passes cost little, so that they draft where they can:
what is asked is not whether it pays.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import mlx.core as mx
from tqdm import tqdm

from omlx.bench.arguments import model_dir, one_of, positive
from omlx.bench.exact import first_difference, seen_by_plain
from omlx.bench.report import table
from omlx.bench.result import Json
from omlx.bench.sides import drive
from omlx.bench.spec.imagined import imagined
from omlx.bench.spec.modes import MODES, PLAIN, Minds, Mode
from omlx.bench.spec.trials import Case, requests
from omlx.bench.subject import Subject, read_subject
from omlx.bench.workloads import WORKLOADS
from omlx.engine.types import Request

WARM: Final = 0.8
"""What is asked greedily is asked once more at this temperature."""

CONTEXT: Final = 400
TOLERANCE: Final = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
"""How far apart two candidates may be, in logits, for rounding to decide between them; by the type of activations."""


@dataclass(frozen=True, slots=True)
class NearTie:
    """Where an answer first differs. In logits: `margin` lies between plain decoding's best two candidates, `apart`
    between the best one and the token that came instead; infinite where one answer merely ended earlier."""

    mode: str
    workload: str
    temperature: float
    token: int
    margin: float
    apart: float

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
    subject: Subject, modes: Seq[Mode], asked: Seq[tuple[str, Request]], tick: Callable[[], object] = lambda: None
) -> list[Compared]:
    """Ask every mode, and plain decoding, the same. `asked` are requests with the names of their workloads."""
    minds = Minds(subject, None, imagined)
    plain = [_answer(subject, minds, PLAIN, one) for _, one in asked]
    found = []
    for mode in modes:
        proposed = accepted = tokens = 0
        ties = []
        for (workload, one), (reference, _, _) in zip(asked, plain, strict=True):
            answer, drafted, right = _answer(subject, minds, mode, one)
            proposed, accepted, tokens = proposed + drafted, accepted + right, tokens + len(answer)
            if (place := first_difference(answer, reference)) is not None:
                margins = _margins(subject, one, reference, answer, place)
                ties.append(NearTie(mode.name, workload, one.sampling.temperature, place, *margins))
            tick()
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
        for asked in (one for trial in range(trials) for group in requests(case, trial) for one in group):
            assert asked.max_tokens is not None
            one = replace(asked, max_tokens=min(asked.max_tokens, longest or asked.max_tokens))
            yield workload.name, one
            if one.sampling.temperature == 0.0:
                yield workload.name, replace(one, sampling=replace(one.sampling, temperature=WARM))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `omlx bench exact`."""
    workloads, modes = tuple(w.name for w in WORKLOADS), tuple(m.name for m in MODES)
    parser.add_argument("--model", type=model_dir, metavar="DIR", required=True, help="folder of the model")
    parser.add_argument("--draft", type=model_dir, metavar="DIR", help="folder of a draft model; without: lookups only")
    parser.add_argument(
        "--workloads", type=one_of(workloads), default=workloads, metavar="NAME,…", help="of bench spec"
    )
    parser.add_argument("--modes", type=one_of(modes), default=modes, metavar="NAME,…", help=f"of {','.join(modes)}")
    parser.add_argument("--trials", type=positive, default=1, metavar="N", help="questions a workload, about")
    parser.add_argument("--context", type=positive, default=CONTEXT, metavar="N", help="tokens of prompt and answer")
    parser.add_argument("--tokens", type=positive, metavar="N", help="longest answer")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="convert the weights")
    parser.add_argument("--quantize", type=int, choices=(2, 3, 4, 6, 8), metavar="BITS", help="quantize the weights")
    parser.add_argument("--tolerance", type=float, metavar="LOGITS", help="else by the type: " + _tolerances())
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything")


def run(args: argparse.Namespace) -> int:
    """Compare, print, write. Returns the exit status: 1 if a difference was no near-tie, 2 if models do not fit."""
    try:
        subject = read_subject(args.model, args.draft, dtype=args.dtype, bits=args.quantize)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    tolerance = tolerance_of(subject) if args.tolerance is None else args.tolerance
    modes = [mode for mode in MODES if mode.name in args.modes and (subject.draft is not None or not mode.needs_draft)]
    asked = list(questions(subject, args.workloads, args.trials, args.context, args.tokens))
    with tqdm(total=len(modes) * len(asked), unit="answer", disable=None) as bar:
        found = compare(subject, modes, asked, bar.update)
    head = ("mode", "answers", "tokens", "drafted", "accepted", "differ", "farthest")
    sys.stdout.write(table([head, *(each.cells for each in found)]) + "\n")
    for tie in (tie for each in found for tie in each.near_ties):
        sys.stdout.write(f"First difference: {tie}\n")
    exact = all(each.farthest <= tolerance for each in found)
    sys.stdout.write(f"{'All within' if exact else 'NOT all within'} the tolerance of {tolerance:g} logits.\n")
    if args.json:
        record: Json = {"models": subject.describe(), "tolerance": tolerance, "modes": [asdict(each) for each in found]}
        args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if exact else 1


def tolerance_of(subject: Subject) -> float:
    """By what the model computes in, which for quantized weights is the type of their scales."""
    logits: mx.array = subject.model(mx.zeros((1, 1), mx.uint32))
    return TOLERANCE[str(logits.dtype).removeprefix("mlx.core.")]


def _answer(subject: Subject, minds: Minds, mode: Mode, one: Request) -> tuple[tuple[int, ...], int, int]:
    """The tokens of an answer, and how many were drafted and accepted. Raises what the request failed with."""
    minds.enter("", mode, random_draft=False)
    driven = drive(subject.loop, [replace(one, speculation=mode.asks)])
    for error in driven.errors.values():
        raise error
    return driven.run.tokens[0], driven.run.proposed, driven.run.accepted


def _margins(subject: Subject, one: Request, plain: Seq[int], other: Seq[int], place: int) -> tuple[float, float]:
    if place >= min(len(plain), len(other)):
        return float("inf"), float("inf")
    scores = seen_by_plain(subject, one, plain[:place])
    second, best = (float(score) for score in mx.sort(scores)[-2:])
    return best - second, best - float(scores[other[place]])


def _tolerances() -> str:
    return ", ".join(f"{value:g} {name}" for name, value in TOLERANCE.items())
