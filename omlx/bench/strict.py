"""`omlx bench exact --strict N`: a busy, strict engine against plain decoding alone.

Prompts share beginnings and cross prefill chunks; one to four requests run together, some join
midway, every kind of drafter drafts, prefixes are restored, at temperatures 0 and 0.8. The same
requests with near-ties admitted show the price of strictness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from omlx.bench.console import Progress
from omlx.bench.drive import Driven, drive, fixed_costs, run
from omlx.bench.subject import Subject
from omlx.draft_length import DraftLength
from omlx.engine.build import build_loop
from omlx.engine.device.facts import ModelFacts, facts_of, measure_exactness, probed
from omlx.engine.device.model import cache_maker
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import OFF, parse
from omlx.engine.types import Limits, Request, Sampling, Speculation, run_through
from omlx.exactness import Exactness
from omlx.measure.sample import total

CONTEXT: Final = 2048
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
    steps = measure_exactness(subject.model, make_cache, subject.vocab_size, CONTEXT)
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
        reference += run(alone, [plain]).tokens
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
    limits = Limits(context_length=CONTEXT, prefix_bytes=prefix_bytes, strict=strict)
    loop = build_loop(
        subject.model,
        subject.vocab_size,
        limits,
        draft=subject.draft,
        cost_model=costs,
        facts=facts,
    )
    speculator = loop.speculator
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
        prompt = (*shared, *_cut(rng, source, rng.randint(1, 20)))[: CONTEXT - 64]
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
