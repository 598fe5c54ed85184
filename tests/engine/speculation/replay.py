"""Recorded answers of the bundled models, as texts for the simulated engine.

`python -m lab.bench answers` wrote `answers.json`, with six questions of each workload.
"""

import json
from functools import cache
from pathlib import Path

from lab.bench.oracle import RoundCosts, bound
from omlx.engine.speculation.policy import History
from tests.engine.speculation.simulation import Run
from tests.engine.speculation.worlds import LONGEST_DRAFT, Machine, Text, lookups

ANSWERS = Path(__file__).with_name("answers.json")


@cache
def recorded() -> dict[str, list[Text]]:
    """Return the answers by workload."""
    answers = json.loads(ANSWERS.read_text(encoding="utf-8"))
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
    costs, history = machine.costs(300), History()
    plain = played = 0.0
    for seed, text in enumerate(recorded()[workload]):
        run = Run(machine, text, seed)
        plain += run.fixed((), 0)
        played += run.adaptive(cost_model=costs, history=history).seconds
    return plain / played


def oracle(machine: Machine, workload: str) -> float:
    """Return the speed-up of the lookup oracle for the same answers."""
    widths = range(2, 65)
    costs = RoundCosts(1.0, tuple(widths), tuple(machine.verify(width, 0) for width in widths))
    bounds = [bound(text.prompt_tokens, text.output, costs) for text in recorded()[workload]]
    return sum(b.plain_s for b in bounds) / sum(b.oracle_s for b in bounds)
