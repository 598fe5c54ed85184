"""Quantized KV caches against unquantized ones: bytes, agreement of the most likely token, seconds.

A text is read by teacher forcing, in pieces with a cache of their own: at each position both caches
have the same tokens, and the most likely next ones are compared. Steps are timed interleaved.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import exp
from pathlib import Path
from statistics import median
from typing import Any, Final, cast

import mlx.core as mx

from lab.bench.console import add
from lab.bench.subject import read_subject
from omlx.engine.device.facts import kv_refusal
from omlx.engine.device.model import Cache, cache_maker
from omlx.engine.device.payloads import bytes_per_token

CHUNK: Final = 256
"""Tokens of a pass."""

STEPS: Final = 16


@dataclass(slots=True)
class Agreement:
    """Sums over the positions of a text.

    `agreed` have the same most likely token, `gaps` are the logits by which the unquantized cache
    preferred its own at the others; `divergence` is the sum of the Kullback-Leibler divergences.
    """

    positions: int = 0
    agreed: int = 0
    divergence: float = 0.0
    losses: list[float] = field(default_factory=lambda: [0.0, 0.0])
    gaps: list[float] = field(default_factory=list)

    def compare(self, plain: mx.array, quantized: mx.array, following: mx.array) -> None:
        """Count logits [tokens, V], behind which the text has the tokens `following`."""
        best, other = mx.argmax(plain, axis=-1), mx.argmax(quantized, axis=-1)
        wanted = plain - mx.logsumexp(plain, axis=-1, keepdims=True)
        given = quantized - mx.logsumexp(quantized, axis=-1, keepdims=True)
        places = mx.arange(plain.shape[0])
        differs = best != other
        gap = plain[places, best] - plain[places, other]
        self.positions += plain.shape[0]
        self.agreed += plain.shape[0] - int(cast(int, differs.sum().item()))
        self.divergence += float(cast(float, (mx.exp(wanted) * (wanted - given)).sum().item()))
        for i, logprobs in enumerate((wanted, given)):
            self.losses[i] -= float(cast(float, logprobs[places, following].sum().item()))
        pairs = zip(
            cast(list[float], gap.tolist()), cast(list[bool], differs.tolist()), strict=True
        )
        self.gaps += [value for value, differs_here in pairs if differs_here]


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one number of bits, None for an unquantized cache.

    `bytes_share` is of the unquantized cache's bytes per token, `step_ratio` of its step's time at
    the end of a piece. `median_gap`: logits at the positions that disagree.
    """

    bits: int
    bytes_per_token: int
    bytes_share: float
    positions: int
    agreement: float
    divergence: float
    perplexity: tuple[float, float]
    median_gap: float | None
    step_ratio: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path)
    add(parser, "--dtype")
    parser.add_argument("--kv-bits", default="8,4", help="bits to compare, such as 8,4")
    parser.add_argument(
        "--text", type=Path, nargs="+", required=True, help="files of held-out text"
    )
    parser.add_argument("--positions", type=int, default=2048)
    parser.add_argument("--piece", type=int, default=1024, help="tokens with one cache")


def run(args: argparse.Namespace) -> int:
    """Write a line of JSON for each number of bits. Returns 1 for a model that is refused."""
    subject = read_subject(args.model, None, dtype=args.dtype)
    text = "\n".join(file.read_text(encoding="utf-8") for file in args.text)
    ids = subject.tokenizer.encode(text)[: args.positions + 1]
    for bits in map(int, args.kv_bits.split(",")):
        refusal = kv_refusal(subject.model, cache_maker(subject.model), bits)
        if refusal is not None:
            sys.stderr.write(f"{refusal.message}\n")
            return 1
        row = measure(subject.model, ids, bits, args.piece)
        sys.stdout.write(json.dumps(asdict(row)) + "\n")
        sys.stdout.flush()
    return 0


def measure(model: Any, ids: Sequence[int], bits: int, piece: int) -> Row:
    """Compare a cache of `bits` with an unquantized one, `piece` tokens of text at a time."""
    found, sizes, ratios = Agreement(), (0, 0), list[float]()
    for start in range(0, len(ids) - 1, piece):
        part = ids[start : start + piece + 1]
        caches = [cache_maker(model)(), cache_maker(model, bits)()]
        for at, logits in _passes(model, part[:-1], caches):
            following = mx.array(list(part[at + 1 : at + 1 + logits[0].shape[0]]))
            found.compare(logits[0], logits[1], following)
        sizes = bytes_per_token(caches[0], "rows"), bytes_per_token(caches[1], "rows")
        plain, quantized = _step_times(model, caches)
        ratios.append(quantized / plain)
    losses = [round(exp(loss / found.positions), 3) for loss in found.losses]
    return Row(
        bits,
        sizes[1],
        round(sizes[1] / sizes[0], 3),
        found.positions,
        round(found.agreed / found.positions, 5),
        round(found.divergence / found.positions, 6),
        (losses[0], losses[1]),
        round(median(found.gaps), 4) if found.gaps else None,
        round(median(ratios), 3),
    )


def _passes(
    model: Any, ids: Sequence[int], caches: Sequence[Cache]
) -> Iterator[tuple[int, list[mx.array]]]:
    """Yield each pass's position and its logits [tokens, V] with both caches, in float32."""
    for at in range(0, len(ids), CHUNK):
        window = mx.array([list(ids[at : at + CHUNK])])
        logits = [model(window, cache=cache)[0].astype(mx.float32) for cache in caches]
        mx.eval(logits)
        yield at, logits


def _step_times(model: Any, caches: Sequence[Cache]) -> list[float]:
    """Return the median processor seconds of a step of one token with each cache, interleaved."""
    seconds: list[list[float]] = [[] for _ in caches]
    for _ in range(STEPS):
        for cache, times in zip(caches, seconds, strict=True):
            begun = time.process_time()
            mx.eval(model(mx.zeros((1, 1), mx.uint32), cache=cache))
            times.append(time.process_time() - begun)
    return [median(times) for times in seconds]
