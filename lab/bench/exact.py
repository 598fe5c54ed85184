"""`python -m lab.bench exact`: every mode against plain decoding, token by token, in any weights.

Every differing answer is listed with its first difference and the distance of the tie there. A
difference that was no near-tie is a bug. Adaptive modes get fixed costs under which speculation
pays, so that they draft wherever possible: speed is not the question.

`--strict N` compares a busy, strict engine with plain decoding alone. Prompts share beginnings and
cross prefill chunks; one to four requests run together, some join midway, every kind of drafter
drafts, prefixes are restored, at temperatures 0 and 0.8. The same requests with near-ties admitted
show the price of strictness.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import mlx.core as mx

from lab.bench.cases import (
    PLAIN,
    LearnedStates,
    Mode,
    SpeculationCase,
    add_case_arguments,
    chosen_modes,
    requests,
)
from lab.bench.console import Json, Progress, not_negative, positive, table, write_json
from lab.bench.drive import Divergence, Driven, divergence, drive, fixed_costs
from lab.bench.drive import run as run_requests
from lab.bench.subject import Subject, read_subject
from lab.bench.workloads import WORKLOADS
from omlx.draft_length import DraftLength
from omlx.engine.build import build_loop
from omlx.engine.device.facts import ModelFacts, facts_of, measure_exactness, probed
from omlx.engine.device.model import cache_maker
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import OFF, parse
from omlx.engine.types import Limits, Request, Sampling, Speculation, run_through
from omlx.exactness import TOLERANCE, Exactness
from omlx.measure.sample import Sample, total

WARM: Final = 0.8
"""Temperature — every greedy request is repeated with sampling."""

CONTEXT: Final = 400
"""Tokens — default length of prompt and answer."""

HEAD: Final = ("mode", "answers", "tokens", "drafted", "accepted", "differ", "farthest")


@dataclass(frozen=True, slots=True)
class NearTie(Divergence):
    """A mode's divergence from plain decoding."""

    mode: str
    workload: str
    temperature: float

    def __str__(self) -> str:
        place = f"{self.mode}, {self.workload}, T={self.temperature:g}, token {self.token}"
        return f"{place}: best two {self.margin:.4f} apart, the one that came {self.apart:.4f}"


@dataclass(frozen=True, slots=True)
class ModeComparison:
    """A mode's answers to all questions, in counts of answers and tokens."""

    mode: str
    answers: int
    tokens: int
    proposed: int
    accepted: int
    near_ties: tuple[NearTie, ...]

    @property
    def farthest(self) -> float:
        """Logits — the largest gap between two tokens that differ."""
        return max((tie.apart for tie in self.near_ties), default=0.0)

    @property
    def cells(self) -> tuple[str, ...]:
        counts = (self.answers, self.tokens, self.proposed, self.accepted, len(self.near_ties))
        return (self.mode, *map(str, counts), f"{self.farthest:.4f}" if self.near_ties else "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tolerances = ", ".join(f"{value:g} {name}" for name, value in TOLERANCE.items())
    add_case_arguments(parser, trials=1, context=CONTEXT)
    parser.add_argument("--tokens", type=positive, metavar="N", help="longest answer")
    parser.add_argument(
        "--strict",
        type=positive,
        metavar="N",
        help="answer N requests in company, strictly, and compare with plain decoding alone",
    )
    parser.add_argument(
        "--tolerance", type=not_negative, metavar="LOGITS", help=f"else by the type: {tolerances}"
    )


def run(args: argparse.Namespace) -> int:
    """Compare, print, write. Returns 1 beyond near-ties, 2 for incompatible models."""
    try:
        modes = chosen_modes(args.modes, draft=args.draft is not None)
        subject = read_subject(args.model, args.draft, dtype=args.dtype, bits=args.quantize)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if args.strict is not None:
        return _run_strict(subject, args.strict, args.json)
    tolerance = tolerance_of(subject) if args.tolerance is None else args.tolerance
    asked = list(questions(subject, args.workloads, args.trials, args.context, args.tokens))
    with Progress(len(modes) * len(asked), "answer") as progress:
        compared = compare(subject, modes, asked, progress)
    record: Json = {
        "models": subject.describe(),
        "tolerance": tolerance,
        "modes": [asdict(comparison) for comparison in compared],
    }
    write_json(args.json, record)
    lines = [table([HEAD, *(comparison.cells for comparison in compared)])]
    for comparison in compared:
        lines += [f"First difference: {tie}" for tie in comparison.near_ties]
    exact = all(comparison.farthest <= tolerance for comparison in compared)
    verdict = "All within" if exact else "NOT all within"
    lines.append(f"{verdict} the tolerance of {tolerance:g} logits.")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if exact else 1


def _run_strict(subject: Subject, answers: int, file: Path | None) -> int:
    """Compare strict answers of a busy engine with plain ones. Returns 1 for any difference."""
    with Progress(3 * answers, "answer") as progress:
        found = compare_strict(subject, answers, progress)
    record = asdict(found) | {"measured": found.measured.to_json(), "price": found.price}
    write_json(file, {"models": subject.describe(), "strict": record})
    measured = found.measured
    sys.stdout.write(
        f"Bits of single steps up to {measured.width} tokens and {measured.batch} rows "
        f"(largest difference {measured.difference:.2g} logits).\n"
        f"{found.answers} answers, {found.tokens} tokens, {found.cached} cached, "
        f"{found.batched} steps shared, {found.proposed} drafted, {found.accepted} accepted.\n"
        f"{found.differ} differ from plain decoding alone; {found.differ_ties} without strict.\n"
        f"Strict takes {found.price:.2f} times as long.\n"
    )
    return 1 if found.differ else 0


def questions(
    subject: Subject,
    workloads: Sequence[str],
    trials: int,
    context: int,
    longest: int | None = None,
) -> Iterator[tuple[str, Request]]:
    """Yield workload names and requests; greedy requests are repeated at temperature `WARM`.

    `context` and the `longest` answer are in tokens.
    """
    states = LearnedStates(subject, None)
    for workload in WORKLOADS:
        if workload.name not in workloads:
            continue
        case = SpeculationCase("model", subject, states, workload, PLAIN, 1, context)
        for trial in range(trials):
            for (asked,) in requests(case, trial):
                assert asked.max_tokens is not None
                max_tokens = min(asked.max_tokens, longest or asked.max_tokens)
                bounded = replace(asked, max_tokens=max_tokens)
                yield workload.name, bounded
                if asked.sampling.temperature == 0.0:
                    warm = replace(asked.sampling, temperature=WARM)
                    yield workload.name, replace(bounded, sampling=warm)


def compare(
    subject: Subject,
    modes: Sequence[Mode],
    asked: Sequence[tuple[str, Request]],
    progress: Progress,
) -> list[ModeComparison]:
    """Compare every mode with plain decoding; each answer is a unit of `progress`."""
    states = LearnedStates(subject, None, fixed_costs)
    progress.start(PLAIN.name)
    plain = [_answer(subject, states, PLAIN, request) for _, request in asked]
    comparisons = []
    for mode in modes:
        answers: list[Sample] = []
        ties = []
        for (workload, request), reference in zip(asked, plain, strict=True):
            progress.start(f"{mode.name}, {workload}")
            answer = _answer(subject, states, mode, request)
            answers.append(answer)
            found = divergence(subject, request, reference.tokens[0], answer.tokens[0])
            if found is not None:
                place = (found.token, found.margin, found.apart)
                ties.append(NearTie(*place, mode.name, workload, request.sampling.temperature))
            progress.tick()
        whole = total(answers)
        comparisons.append(
            ModeComparison(
                mode=mode.name,
                answers=len(answers),
                tokens=sum(map(len, whole.tokens)),
                proposed=whole.proposed,
                accepted=whole.accepted,
                near_ties=tuple(ties),
            )
        )
    return comparisons


def tolerance_of(subject: Subject) -> float:
    """Return the tolerance for the dtype of the logits (for quantized weights, of the scales)."""
    logits: mx.array = subject.model(mx.zeros((1, 1), mx.uint32))
    return TOLERANCE[str(logits.dtype).removeprefix("mlx.core.")]


def _answer(subject: Subject, states: LearnedStates, mode: Mode, request: Request) -> Sample:
    """Run a request in a mode. Raises the error of a failed request."""
    states.enter("", mode, random_draft=False)
    return run_requests(subject.loop, [replace(request, speculation=mode.speculation)])


STRICT_CONTEXT: Final = 2048
"""Tokens — bound of prompt and answer."""

BEGINNINGS: Final = 6
"""Texts — beginnings shared by prompts."""

LENGTHS: Final = (1, 3, 6, 12)
"""Tokens — lengths of answers."""

TEMPERATURES: Final = (0.0, 0.8)
ROWS: Final = (1, 1, 2, 3, 4)
"""Requests that run together."""

STRATEGIES: Final = ("auto", "ngram", "draft", "ngram;draft")


@dataclass(frozen=True, slots=True)
class StrictComparison:
    """Differences of a busy engine's answers from plain decoding alone, strict and with near-ties.

    `seconds` cover all answers, `tokens` prompts and answers.
    """

    measured: Exactness
    answers: int
    tokens: int
    proposed: int
    accepted: int
    cached: int
    batched: int
    differ: int
    differ_ties: int
    seconds: float
    seconds_ties: float

    @property
    def price(self) -> float:
        """Time of strict answers as a multiple of the others'."""
        return self.seconds / self.seconds_ties


def compare_strict(
    subject: Subject, answers: int, progress: Progress, facts: ModelFacts | None = None
) -> StrictComparison:
    """Answer the same requests plainly and alone, strictly in company, and with near-ties.

    Without `facts` of the model, short passes determine them.
    """
    make_cache = cache_maker(subject.model)
    steps = measure_exactness(subject.model, make_cache, subject.vocab_size, STRICT_CONTEXT)
    measured = run_through(steps)
    asked = _requests(subject, answers)
    if facts is None:
        facts = facts_of(subject.model, subject.vocab_size, make_cache)
        facts = run_through(probed(facts, subject.model, make_cache))
    alone = _loop(subject, measured, facts, strict=True, prefix_bytes=0)
    reference: list[tuple[int, ...]] = []
    progress.start("plain, alone")
    for request in asked:
        plain = replace(request, speculation=Speculation(OFF))
        reference += run_requests(alone, [plain]).tokens
        progress.tick()  # of three: the other two are answered together
    busy = {
        "strict": _loop(subject, measured, facts, strict=True),
        "ties": _loop(subject, measured, facts, strict=False),
    }
    driven: dict[str, list[Driven]] = {name: [] for name in busy}
    rng, at = Random(1), 0
    progress.start("busy")
    while at < len(asked):
        group = asked[at : at + rng.choice(ROWS)]
        joins = [0] + [rng.choice((0, 0, 1, 5)) for _ in group[1:]]  # steps after the one before
        order = list(busy) if rng.random() < 0.5 else list(busy)[::-1]
        for name in order:
            driven[name].append(drive(busy[name], group, joins).proven())
        at += len(group)
        for _ in range(2 * len(group)):
            progress.tick()
    strict, ties = (total(group.sample for group in driven[name]) for name in busy)
    return StrictComparison(
        measured,
        answers=len(asked),
        tokens=sum(len(request.tokens) for request in asked) + sum(map(len, reference)),
        proposed=strict.proposed,
        accepted=strict.accepted,
        cached=busy["strict"].prefix_stats.hit_tokens,
        batched=sum(group.batched for group in driven["strict"]),
        differ=sum(map(tuple.__ne__, strict.tokens, reference)),
        differ_ties=sum(map(tuple.__ne__, ties.tokens, reference)),
        seconds=strict.total_s,
        seconds_ties=ties.total_s,
    )


def _loop(
    subject: Subject,
    measured: Exactness,
    facts: ModelFacts,
    *,
    strict: bool,
    prefix_bytes: int = 64 << 20,
) -> EngineLoop:
    costs = CostModel(exactness=measured)
    limits = Limits(context_length=STRICT_CONTEXT, prefix_bytes=prefix_bytes, strict=strict)
    loop = build_loop(
        subject.model,
        subject.vocab_size,
        limits,
        draft=subject.draft,
        cost_model=costs,
        facts=facts,
    )
    speculator = loop.scheduler.speculator
    loop.use_drafters(speculator.drafters, speculator.off_reason, cost_model=fixed_costs())
    return loop


def _requests(subject: Subject, answers: int) -> list[Request]:
    """Return requests whose prompts share beginnings or continue an earlier prompt."""
    rng = Random(0)
    source = [token for prompt in subject.prompts for token in prompt]
    beginnings = [_cut(rng, source, 300) for _ in range(BEGINNINGS)]
    asked: list[Request] = []
    for number in range(answers):
        longest = rng.choice((40, 40, 40, 40, 300))  # one in five crosses a chunk
        shared = rng.choice(beginnings)[: rng.randint(longest - 30, longest)]
        if asked and rng.random() < 0.3:
            shared = rng.choice(asked[-6:]).tokens
        prompt = (*shared, *_cut(rng, source, rng.randint(1, 20)))[: STRICT_CONTEXT - 64]
        length = rng.choice((None, DraftLength.exactly(2), DraftLength.exactly(7)))
        strategy = parse(rng.choice(STRATEGIES if subject.draft is not None else STRATEGIES[:2]))
        sampling = Sampling(rng.choice(TEMPERATURES), seed=rng.getrandbits(30))
        asked.append(
            Request(
                f"strict-{number}",
                prompt,
                sampling,
                max_tokens=rng.choice(LENGTHS),
                speculation=Speculation(strategy, length),
            )
        )
    return asked


def _cut(rng: Random, source: Sequence[int], length: int) -> tuple[int, ...]:
    start = rng.randrange(max(1, len(source) - length))
    return tuple(source[start : start + length])
