"""Recorded answers of models, as texts for the simulated engine.

`python -m lab.bench answers` wrote them: `answers.json` by the bundled models, six questions of
each workload; `smollm2.json.gz` by SmolLM2, 52 questions of each, half of them at temperature 0.8,
with its head as the drafter.
"""

import gzip
import json
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

from lab.bench.oracle import RoundCosts, bound
from tests.engine.speculation.simulation import LENGTHS, Run, served
from tests.engine.speculation.worlds import LONGEST_DRAFT, Machine, Text, lookups

TOY, REAL = "answers.json", "smollm2.json.gz"


@cache
def recorded(file: str = TOY) -> dict[str, list[Text]]:
    """Return the answers by workload."""
    content = Path(__file__).with_name(file).read_bytes()
    answers = json.loads(gzip.decompress(content) if file.endswith(".gz") else content)
    return {
        workload: [_text(entry["prompt"], entry["answer"], entry["drafted"]) for entry in entries]
        for workload, entries in answers.items()
    }


def _text(prompt: list[int], answer: list[int], drafted: str) -> Text:
    runs = [0] * (len(answer) + 1)
    for i in reversed(range(len(answer))):
        if drafted[i] == "1":
            runs[i] = min(LONGEST_DRAFT, runs[i + 1] + 1)
    text = Text(
        len(prompt), len(answer), drafted=runs[:-1], prompt_tokens=tuple(prompt), output=answer
    )
    text.match, text.hits = lookups(prompt, answer)
    return text


def replay(machine: Machine, workload: str) -> float:
    """Return the speed-up of a workload's answers, one after another in one server."""
    runs = [Run(machine, text, seed) for seed, text in enumerate(recorded()[workload])]
    return sum(run.fixed((), 0) for run in runs) / sum(play.seconds for play in served(runs))


def first_requests(machine: Machine, texts: Sequence[Text]) -> float:
    """Return the speed-up of answers of which each is the first of its server."""
    runs = [Run(machine, text, seed) for seed, text in enumerate(texts)]
    return sum(run.fixed((), 0) for run in runs) / sum(run.adaptive().seconds for run in runs)


def share_of_best(machine: Machine, texts: Sequence[Text]) -> float:
    """Return the time of the best fixed setting over that of answers after another in a server."""
    runs = [Run(machine, text, seed) for seed, text in enumerate(texts)]
    played = sum(play.seconds for play in served(runs))
    drafters = (("ngram",), ("draft",), ("ngram", "draft")) if machine.draft else (("ngram",),)
    settings = [((), 0), *product(drafters, LENGTHS)]
    return min(sum(run.fixed(*setting) for run in runs) for setting in settings) / played


def oracle(machine: Machine, workload: str) -> float:
    """Return the speed-up of the lookup oracle for the same answers."""
    widths = range(2, 65)
    costs = RoundCosts(1.0, tuple(widths), tuple(machine.verify(width, 0) for width in widths))
    bounds = [bound(text.prompt_tokens, text.output, costs) for text in recorded()[workload]]
    return sum(b.plain_s for b in bounds) / sum(b.oracle_s for b in bounds)
