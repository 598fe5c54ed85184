"""Prompt lookup over past answers against lookup in the request alone, replayed without a model.

Each pass commits the accepted part of a draft and one more token. Drafts cost nothing here, so the
gain in tokens per pass is an upper bound of the gain in time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from omlx.cli.output import columns

NGRAM: Final = 3
"""Tokens of the shortest match."""
LONGEST_MATCH: Final = 40
DRAFT: Final = 8
NEWEST: Final = 64
"""Number of latest places that are compared for one n-gram."""

Tokens: TypeAlias = Sequence[int]
Match: TypeAlias = tuple[int, Tokens]
"""Length of a match, and the tokens behind it."""


class Index:
    """Places behind each n-gram of texts, which may grow at their ends."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[tuple[Tokens, int]]] = defaultdict(list)

    def add(self, text: Tokens, first: int = 0) -> None:
        """Add n-grams of `text` that begin at `first` or later, but for the last one."""
        for at in range(first, len(text) - NGRAM):
            self._places[tuple(text[at : at + NGRAM])].append((text, at + NGRAM))

    def longest(self, text: Tokens) -> Match:
        """Return the longest match of the end of `text`, of equal ones the newest."""
        best: Match = (0, ())
        for other, place in self._places.get(tuple(text[-NGRAM:]), ())[-NEWEST:]:
            length = _shared_end(other, place, text)
            if length >= best[0]:
                best = (length, other[place : place + DRAFT])
        return best


def _shared_end(other: Tokens, place: int, text: Tokens) -> int:
    most = min(LONGEST_MATCH, place, len(text))
    for length in range(most):
        if other[place - 1 - length] != text[-1 - length]:
            return length
    return most


def tokens_per_pass(answers: Iterable[tuple[Tokens, Tokens]], *, past: bool) -> float:
    """Replay prompts with answers in order; with `past`, drafts come from earlier ones too."""
    passes = tokens = 0
    earlier = Index()
    for prompt, answer in answers:
        text, own, at = list(prompt), Index(), 0
        own.add(text)
        while at < len(answer):
            draft = max(own.longest(text), earlier.longest(text), key=lambda match: match[0])[1]
            accepted = 0
            while draft[accepted : accepted + 1] == answer[at + accepted : at + accepted + 1] != []:
                accepted += 1
            new = answer[at : at + accepted + 1]
            first = max(0, len(text) - NGRAM)
            text += new
            own.add(text, first)
            at, passes, tokens = at + len(new), passes + 1, tokens + len(new)
        if past:
            earlier.add(text)
    return tokens / max(1, passes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="answers as `lab.bench answers` records them")


def run(args: argparse.Namespace) -> int:
    content = args.file.read_bytes()
    recorded = json.loads(gzip.decompress(content) if args.file.suffix == ".gz" else content)
    rows = []
    for workload, entries in recorded.items():
        answers = [(entry["prompt"], entry["answer"]) for entry in entries]
        own, both = (tokens_per_pass(answers, past=past) for past in (False, True))
        gain = f"{100 * (both / own - 1):+.1f} %"
        rows.append((workload, str(len(answers)), f"{own:.3f}", f"{both:.3f}", gain))
    head = ("workload", "answers", "request alone", "and past answers", "tokens per pass")
    sys.stdout.write(columns(rows, head))
    return 0
