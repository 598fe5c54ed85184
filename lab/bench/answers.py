"""Record a model's answers to the workloads of `omlx bench speculation`, for replays.

A replay plays a policy over such answers and takes the cost of every pass from a table, so that it
needs neither the model nor a clock (`tests/engine/speculation/replay.py`).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx

from omlx.bench.cases import LearnedStates, SpeculationCase, chosen_modes, requests
from omlx.bench.console import Json, model_dir
from omlx.bench.drive import run as run_requests
from omlx.bench.subject import Subject, read_subject
from omlx.bench.workloads import WORKLOADS, Workload
from omlx.engine.device.sampling import Draw, RowSampler, draw
from omlx.engine.types import Request

CONTEXT: Final = 600
"""Tokens of prompt and answer."""

SHORTEST: Final = 16
"""Tokens. Shorter answers are left out: no policy can do anything in them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--model", type=model_dir, required=True, metavar="DIR")
    parser.add_argument("--draft", type=model_dir, required=True, metavar="DIR")
    parser.add_argument("--trials", type=int, default=6, help="questions of each workload")


def run(args: argparse.Namespace) -> int:
    """Write the answers, by workload. Return the exit status."""
    subject = read_subject(args.model, args.draft)
    recorded = {}
    for workload in WORKLOADS:
        recorded[workload.name] = answers(subject, workload, args.trials)
    args.out.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


def answers(subject: Subject, workload: Workload, trials: int) -> list[Json]:
    """Return `prompt` and `answer` in ids, and where the draft model is right.

    `drafted` has a 1 for every token of the answer that the draft model samples behind those
    before it. A random draft model is never right.
    """
    (mode,) = chosen_modes(("ngram",), draft=False)
    case = SpeculationCase(
        "model", subject, LearnedStates(subject, None), workload, mode, streams=1, context=CONTEXT
    )
    found: list[Json] = []
    for trial in range(1, trials + 1):
        for (plain,) in requests(case, trial):
            asked = replace(plain, speculation=mode.speculation)
            answer = run_requests(subject.loop, [asked]).tokens[0]
            if len(answer) < SHORTEST:
                continue
            drafted = [False] * len(answer)
            if not workload.random_draft:
                drafted = agreement(subject, plain, answer)
            marks = "".join("01"[right] for right in drafted)
            found.append({"prompt": plain.tokens, "answer": answer, "drafted": marks})
    return found


def agreement(subject: Subject, asked: Request, answer: tuple[int, ...]) -> list[bool]:
    """Return for each token of the answer whether the draft model samples it too."""
    draft: Any = subject.draft
    tokens = (*asked.tokens, *answer)
    sampler = RowSampler(asked.sampling, subject.vocab_size)
    first = len(asked.tokens)
    logits = draft(mx.array([tokens]))[0, first - 1 : -1, : subject.vocab_size]
    places = [Draw(sampler, first + i) for i in range(len(answer))]
    sampled = cast(list[int], draw(logits, places).tolist())
    return [ours == theirs for ours, theirs in zip(sampled, answer, strict=True)]
