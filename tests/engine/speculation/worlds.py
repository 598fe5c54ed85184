"""Simulated machines and texts for the real speculator.

A `Text` is fixed before anything plays: its tokens, where a lookup would match and how much of what
it proposes is right, and how far a draft model would be right from every position. A `Machine`
prices passes. Both are seeded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain, product

from omlx.engine.speculation.cost_model import CostModel, LatencyTable
from omlx.engine.speculation.drafters.ngram import NgramIndex

LONGEST = 63
LONGEST_DRAFT = 16


@dataclass(frozen=True)
class Part:
    """`n` tokens of a kind. `draft` is a draft model's acceptance rate, in bursts if `bursts`."""

    kind: str
    n: int
    draft: float = 0.5
    bursts: bool = False


@dataclass
class Text:
    """`match[i]` and `hits[i]`: a lookup's match after i tokens, and how many it would get right.

    `drafted[i]`: the same for the draft model. Positions count from the start of the output.
    """

    prompt: int
    size: int
    match: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    prompt_tokens: tuple[int, ...] = ()
    output: list[int] = field(default_factory=list)


def _prose(rng: random.Random, n: int) -> list[int]:
    """Rare words and stock phrases: three tokens often repeat, and often continue otherwise."""
    phrases = [[rng.randrange(300) for _ in range(rng.randint(3, 5))] for _ in range(40)]
    found: list[int] = []
    while len(found) < n:
        if rng.random() < 0.12:
            found += phrases[min(int(rng.expovariate(0.1)), 39)]
        else:
            found.append(int(rng.paretovariate(0.6)) % 20000)
    return found[:n]


def _edited(rng: random.Random, source: list[int], n: int, every: int) -> list[int]:
    """The source again, with a few tokens replaced, inserted or deleted every `every` tokens."""
    found: list[int] = []
    at = rng.randrange(max(1, len(source) // 4))
    while len(found) < n:
        if every and rng.random() < 1 / every:
            found += [rng.randrange(20000, 30000) for _ in range(rng.randint(0, 3))]
            at += rng.randint(0, 3)
        found.append(source[at % len(source)])
        at += 1
    return found[:n]


def _records(rng: random.Random, n: int) -> list[int]:
    """Lines of one shape: nine fixed tokens around three that change."""
    found: list[int] = []
    while len(found) < n:
        for i in range(12):
            found.append(rng.randrange(3000) if i in (3, 4, 9) else 40000 + i)
    return found[:n]


def _false_friends(rng: random.Random, n: int) -> list[int]:
    """Triples that repeat and never continue as before: the worst case of a lookup."""
    triples = [[rng.randrange(1000) for _ in range(3)] for _ in range(8)]
    found: list[int] = []
    while len(found) < n:
        found += [*rng.choice(triples), *(rng.randrange(50000, 90000) for _ in range(2))]
    return found[:n]


def _fresh(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(10**6, 10**8) for _ in range(n)]


def _part(rng: random.Random, part: Part, prompt: list[int]) -> list[int]:
    edits = {"verbatim": 0, "small edit": 60, "edit": 25, "heavy edit": 8}
    if part.kind in edits:
        return _edited(rng, prompt, part.n, edits[part.kind])
    kinds = {"prose": _prose, "records": _records, "false friends": _false_friends, "fresh": _fresh}
    return kinds[part.kind](rng, part.n)


def _draft_runs(rng: random.Random, parts: Seq[Part], size: int) -> list[int]:
    """Return how many tokens the draft model gets right from each position."""
    chances: list[float] = []
    for part in parts:
        good = True
        for _ in range(part.n):
            if rng.random() < 0.05:
                good = rng.random() < part.draft
            burst = 0.95 if good else 0.15
            chances.append(burst if part.bursts else part.draft)
    luck = [rng.random() for _ in range(size)]
    runs = []
    for start in range(size):
        run = 0
        while run < LONGEST_DRAFT and start + run < size:
            if luck[start + run] >= chances[start + run] * 0.99**run:
                break
            run += 1
        runs.append(run)
    return runs


@lru_cache(maxsize=512)
def text(
    parts: tuple[Part, ...], seed: int, prompt_tokens: int = 300, repeated: float = 0.0
) -> Text:
    """Return the text of these parts after a prompt of prose; `repeated` of it is a copy."""
    rng = random.Random(f"{parts} {seed}")
    first = round(prompt_tokens * (1.0 - repeated))
    prompt = _fresh(rng, first) if parts[0].kind == "fresh" else _prose(rng, first)
    if repeated:
        prompt += _edited(rng, prompt, prompt_tokens - first, 30)
    output = list(chain.from_iterable(_part(rng, part, prompt) for part in parts))
    found = Text(
        prompt_tokens,
        len(output),
        drafted=_draft_runs(rng, parts, len(output)),
        prompt_tokens=tuple(prompt),
        output=output,
    )
    found.match, found.hits = lookups(prompt, output)
    return found


def lookups(prompt: list[int], output: list[int]) -> tuple[list[int], list[int]]:
    """Return for each place of the output a lookup's match, and how many tokens it gets right."""
    tokens = [*prompt, *output]
    index = NgramIndex(list(prompt))
    matches, hits = [], []
    for i in range(len(prompt), len(tokens)):
        match = index.lookup()
        proposed = index.after(match, LONGEST) if match else ()
        matches.append(match.length if match and proposed else 0)
        wrong = (j for j, token in enumerate(proposed) if tokens[i + j : i + j + 1] != [token])
        hits.append(next(wrong, len(proposed)))
        index.extend([tokens[i]])
    return matches, hits


def _between(table: dict[int, float]) -> Callable[[int], float]:
    known = sorted(table)

    @cache
    def cost(width: int) -> float:
        if width in table:
            return table[width]
        low = max(w for w in known if w < width)
        high = min((w for w in known if w > width), default=None)
        if high is None:
            low, high = known[-2:]
        return table[low] + (table[high] - table[low]) * (width - low) / (high - low)

    return cost


_SAWTOOTH = "1:1 2:1.3 4:1.92 8:2.08 12:3.31 15:2.2 16:1.82 17:2.1 32:2.85 64:5 512:22"
_FLOAT32 = "1:1 2:1.15 3:1.34 4:1.31 5:1.43 6:1.58 8:1.61 9:1.85 10:1.84 12:2.22 16:2.16 17:2.34 \
20:2.83 24:3.17 32:3.62 48:5.07 64:7 512:50"
_HYBRID = "1:1 2:1.05 3:1.17 4:1.12 5:1.07 6:1.27 8:1.02 9:1.11 10:1.22 12:1.37 16:1.2 17:1.27 \
20:1.56 24:1.66 32:1.79 48:2.45 64:3.11 512:22"
_M3_MAX = "1:1 2:1 4:1.28 6:2.04 8:2.5 9:3.14 10:3.94 32:3.98 33:7.77 64:7.8 65:11.5 512:60"
_M5_MAX = "1:1 3:1.12 5:1.48 8:2.25 12:3.18 16:3.9 32:4.2 64:8.2 512:60"
_CPU_BFLOAT16 = "1:1 2:1.3 3:1.62 4:1.94 6:2.54 8:3.23 12:4.48 16:5.74 32:11.33 512:180"
_CPU_4_BIT = "1:1 2:1.85 3:2.68 4:3.5 6:5.18 8:6.86 12:10.22 16:13.65 32:26.93 512:430"
_M1 = "1:1 2:1.95 3:2.9 4:3.8 5:4.7 6:3.6 8:3.7 16:3.9 32:4.2 64:8.3 512:64"
_M4_PRO = "1:1 2:1.03 3:1.22 4:1.47 6:2.07 8:2.69 12:4.5 32:4.5 64:9 512:68"
_BFLOAT16 = "1:1 2:1.99 8:2 16:2 32:2.1 64:3 512:20"


def _read(table: str) -> dict[int, float]:
    pairs = (pair.split(":") for pair in table.split())
    return {int(width): float(cost) for width, cost in pairs}


MEASURED = {
    "CPU, float32": _between(_read(_FLOAT32)),
    "CPU, hybrid": _between(_read(_HYBRID)),
    "M3 Max, 4 bit": _between(_read(_M3_MAX)),
    "M5 Max, 70B, 4 bit": _between(_read(_M5_MAX)),
    "M3 Ultra, bfloat16": _between(_read(_BFLOAT16)),
}
"""Passes of real machines, in plain steps. CPU: two cores, models of 20M parameters, measured with
`benchmarks.round_costs`. 4 bit: ml-explore/mlx#3863 and #3791. bfloat16: mlx's kernels for two and
more rows."""

REAL = {
    "CPU, SmolLM2, bfloat16": _between(_read(_CPU_BFLOAT16)),
    "CPU, SmolLM2, 4 bit": _between(_read(_CPU_4_BIT)),
    "M1, 4 bit": _between(_read(_M1)),
    "M4 Pro, 4 bit": _between(_read(_M4_PRO)),
}
"""Machines for the replay of a real model. CPU: processor time of passes, one thread, medians of
seven. M1: not measured; mlx reads weights again for each of up to five rows, and once for 6 to 32.
M4 Pro: ml-explore/mlx#3839 and #3852."""

SHAPES: dict[str, Callable[[int], float]] = (
    MEASURED
    | REAL
    | {
        "flat": _between({1: 1.0, 2: 1.03, 4: 1.08, 8: 1.2, 16: 1.4, 64: 2.5, 512: 12.0}),
        "sawtooth": _between(_read(_SAWTOOTH)),
        "half": lambda width: 0.5 + 0.5 * width,
        "linear": lambda width: float(width),
    }
)
ROW_GROWTH = {"flat": 0.002, "sawtooth": 0.04}
"""Cost that each further row gains per 1,000 tokens of context, in plain steps."""


@dataclass(frozen=True)
class Machine:
    """Seconds are plain steps at an empty context. `draft` is a draft model's pass, 0 for none."""

    shape: str
    draft: float = 0.0
    recurrent: bool = False
    noise: float = 0.03
    calibrated: bool = True
    first_time: float = 1.0
    """Factor on the first pass of a width, while kernels are compiled."""

    def verify(self, width: int, context: int) -> float:
        """A pass over `width` rows."""
        growth = 1.0 + context / 16000
        return (
            SHAPES[self.shape](width) * growth
            + (width - 1) * ROW_GROWTH.get(self.shape, 0.0) * context / 1000
        )

    def drafting(self, k: int, lag: int, context: int) -> float:
        return self.draft * (SHAPES[self.shape](max(1, lag)) + (k - 1)) * (1.0 + context / 16000)

    def costs(self, context: int) -> CostModel:
        """Return what is known at first: nothing but a prefill, or a calibrated table."""
        costs = CostModel(draft_share=self.draft or 0.2)
        costs.target.learn_chunk(300, context, self.verify(300, context))
        if self.calibrated:
            rng = random.Random(7)
            for width, _ in product((1, 2, 4, 8, 16, 32, 64), range(5)):
                costs.target.learn(
                    width, context, self.verify(width, context) * rng.gauss(1.0, self.noise)
                )
                costs.target.learn(0, context, self.verify(1, context) * rng.gauss(1.0, self.noise))
            if self.draft:
                passes = costs.drafts.setdefault("draft", LatencyTable())
                for width, _ in product((1, 16, 256), range(5)):
                    passes.learn(
                        width,
                        context,
                        self.drafting(1, width, context) * rng.gauss(1.0, self.noise),
                    )
        return costs
