"""Record a model's answers to workloads, for replays.

A replay plays a policy over such answers and takes the cost of every pass from a table, so that it
needs neither the model nor a clock (`tests/engine/speculation/replay.py`).
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import mlx.core as mx
from tqdm import tqdm

from lab.bench.cases import LearnedStates, SpeculationCase, chosen_modes, requests
from lab.bench.console import Json, model_dir
from lab.bench.drive import run as run_requests
from lab.bench.real_questions import REAL
from lab.bench.subject import Subject, read_subject
from lab.bench.workloads import WORKLOADS, Workload
from omlx.engine.device.model import parts_of
from omlx.engine.device.sampling import Draw, RowSampler, draw
from omlx.engine.types import Request
from omlx.errors import Reason
from omlx.models.catalog.drafters import own_head
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.head import build_head

CONTEXT: Final = 600
"""Tokens of prompt and answer."""

SHORTEST: Final = 16
"""Tokens. Shorter answers are left out: no policy can do anything in them."""

TEMPERATURE: Final = 0.8
"""Of every second answer to a question of `REAL`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    parser.add_argument("out", type=Path, help="JSON file to write, compressed if it ends in .gz")
    parser.add_argument("--model", type=model_dir, required=True, metavar="DIR")
    parser.add_argument(
        "--draft",
        type=model_dir,
        metavar="DIR",
        help="without it: the model's head, real questions",
    )
    parser.add_argument("--trials", type=int, default=6, help="questions of each workload")
    parser.add_argument("--streams", type=int, default=1, help="questions answered together")


def run(args: argparse.Namespace) -> int:
    """Write the answers, by workload. Return the exit status."""
    subject = read_subject(args.model, args.draft)
    proposer = Head(subject, args.model) if args.draft is None else None
    recorded = {}
    for workload in REAL if proposer else WORKLOADS:
        recorded[workload.name] = answers(subject, workload, args.trials, args.streams, proposer)
    text = json.dumps(recorded, separators=(",", ":")) + "\n"
    content = text.encode()
    # Without a time of writing, so that the same answers are the same bytes.
    args.out.write_bytes(gzip.compress(content, mtime=0) if args.out.suffix == ".gz" else content)
    return 0


class Head:
    """The head of a model in `folder`: logits [n, vocabulary] for the tokens from `first` on.

    Raises ValueError if the model has none.
    """

    def __init__(self, subject: Subject, folder: Path) -> None:
        files = own_head(ModelEntry(folder.name, folder, "bench"))
        parts = parts_of(subject.model)
        if isinstance(files, Reason) or parts is None:
            raise ValueError(f"{folder} has no head")
        self._parts = parts
        self._head = build_head(files, subject.model)
        mx.eval(cast(Any, self._head).parameters())
        self._vocab_size = subject.vocab_size

    def __call__(self, tokens: tuple[int, ...], first: int) -> mx.array:
        ids, parts = mx.array([tokens]), self._parts
        hidden = parts.body(ids)[:, :-2]
        drafted = self._head(parts.embed(ids[:, 1:-1]), hidden, self._head.make_cache())
        logits = parts.score(drafted)[0, first - 2 :, : self._vocab_size]
        if self._head.draft_token_ids is None:
            return logits
        shortlist = mx.zeros(self._vocab_size, mx.bool_)
        shortlist[self._head.draft_token_ids] = True
        return mx.where(shortlist, logits, -mx.inf)


def answers(
    subject: Subject, workload: Workload, trials: int, streams: int = 1, head: Head | None = None
) -> list[Json]:
    """Return `prompt` and `answer` in ids, and where the draft model or the `head` is right.

    `drafted` has a 1 for every token of the answer that it samples behind those before it. A
    random draft model is never right.
    """
    (mode,) = chosen_modes(("ngram",), draft=False)
    states = LearnedStates(subject, None)
    case = SpeculationCase("model", subject, states, workload, mode, streams, CONTEXT)
    found: list[Json] = []
    for trial in tqdm(range(1, trials + 1), workload.name, disable=None):
        for group in requests(case, trial):
            asked = [replace(plain, speculation=mode.speculation) for plain in group]
            if head is not None and trial % 2:
                hot = [replace(one.sampling, temperature=TEMPERATURE) for one in asked]
                asked = [replace(one, sampling=how) for one, how in zip(asked, hot, strict=True)]
            made = run_requests(subject.loop, asked).tokens
            for plain, answer in zip(asked, made, strict=True):
                if len(answer) < SHORTEST:
                    continue
                drafted = [False] * len(answer)
                if not workload.random_draft:
                    drafted = agreement(subject, plain, answer, head)
                marks = "".join("01"[right] for right in drafted)
                found.append({"prompt": plain.tokens, "answer": answer, "drafted": marks})
    return found


def agreement(
    subject: Subject, asked: Request, answer: tuple[int, ...], head: Head | None = None
) -> list[bool]:
    """Return for each token of the answer whether draft model or head samples it too."""
    draft: Any = subject.draft
    tokens, first = (*asked.tokens, *answer), len(asked.tokens)
    sampler = RowSampler(asked.sampling, subject.vocab_size)
    if head is not None:
        logits = head(tokens, first)
    else:
        logits = draft(mx.array([tokens]))[0, first - 1 : -1, : subject.vocab_size]
    places = [Draw(sampler, first + i) for i in range(len(answer))]
    sampled = cast(list[int], draw(logits, places).tolist())
    return [ours == theirs for ours, theirs in zip(sampled, answer, strict=True)]
