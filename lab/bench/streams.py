"""`python -m lab.bench streams`: plain streams over HTTP, by omlx and by mlx-lm's server.

Both serve the same weights and answer prompts of mixed lengths greedily, omlx without speculation.
They take turns with the same requests, of which none repeats another. A rate counts all tokens of
all streams from the first request to the last byte; processor time is that of the server's process,
steadier than wall time where other programs run.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final

from lab.bench import inflate
from lab.bench.http.server import Server, processor_seconds
from lab.bench.http.streams import TIMEOUT_S, post
from lab.bench.prefix import side_by_side
from omlx.bench.console import Json, add, environment, numbers, positive, table, write_json
from omlx.measure.spread import Series, run_pair
from omlx.measure.texts import TEXTS

HEAD: Final = ("streams", "figure", "omlx", "mlx-lm", "omlx is better by", "least", "most")
LENGTHS: Final = (5, 15, 30, 60)
"""Words of a prompt, in turn."""
_COUNT: Final = re.compile(rb'"completion_tokens": ?(\d+)')
_TEXT: Final = re.compile(rb'"(?:content|reasoning|reasoning_content)": ?"[^"]')


@dataclass(frozen=True, slots=True)
class Streamed:
    """`first_s` is the mean over streams of the time to the first text."""

    tokens: int
    seconds: float
    first_s: float
    processor_s: float


FIGURES: Final[tuple[tuple[str, Callable[[Streamed], float], bool], ...]] = (
    ("tokens/s", lambda streamed: streamed.tokens / streamed.seconds, False),
    ("first text, ms", lambda streamed: 1e3 * streamed.first_s, True),
    ("processor, ms/token", lambda streamed: 1e3 * streamed.processor_s / streamed.tokens, True),
)
"""Name, value, and whether the smaller one is better."""


@dataclass(slots=True)
class _Stream:
    socket: socket.socket
    received: bytes = b""
    first_s: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--json")
    inflate.add_arguments(parser, draft=False)
    parser.add_argument(
        "--streams", type=numbers, default=(1, 2, 4, 8, 16), metavar="N,…", help="how many at once"
    )
    for flag, default, text in (
        ("--tokens", 128, "longest answer"),
        ("--trials", 5, "default %(default)s"),
    ):
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table."""
    load_before = os.getloadavg()
    rows: list[tuple[str, ...]] = [HEAD]
    results: list[Json] = []
    most = ("--max-concurrent-requests", str(max(args.streams)))
    with side_by_side(args.model, args.inflate, *most) as (servers, model):
        (ours, theirs), (parameters, _) = servers, model
        for count in args.streams:
            pairs = compare(ours, theirs, count, args.tokens, args.trials)
            rows += compared(count, pairs)
            results.append({"streams": count, "samples": [_to_json(*pair) for pair in pairs]})
    report: Json = {
        **environment(load_before),
        "model": {"name": args.model.name, "parameters": parameters},
        "settings": {"tokens": args.tokens, "trials": args.trials, "inflate": args.inflate},
        "streams": results,
    }
    write_json(args.json, report)
    sys.stdout.write(f"{table(rows)}\n")
    return 0


def compare(
    ours: Server, theirs: Server, count: int, tokens: int, trials: int
) -> list[tuple[Streamed, Streamed]]:
    """Return what both servers did, by trial. The first trial warms up and is not counted."""
    pairs = []
    for trial in range(trials + 1):
        texts = prompts(count, trial)
        pairs.append(
            run_pair(
                partial(stream, ours, texts, tokens),
                partial(stream, theirs, texts, tokens),
                swap=trial % 2 == 1,
            )
        )
    return pairs[1:]


def prompts(count: int, trial: int) -> list[str]:
    """Return prompts of `LENGTHS` words, seeded by their number and trial."""
    words = (TEXTS / "words.txt").read_text(encoding="utf-8").split()
    texts = []
    for number in range(count):
        rng = random.Random(f"{count} {trial} {number}")
        chosen = rng.choices(words, k=LENGTHS[number % len(LENGTHS)])
        texts.append(f"Continue this list of words: {' '.join(chosen)}")
    return texts


def stream(server: Server, texts: Sequence[str], tokens: int) -> Streamed:
    """Send all requests at once and read the answers. Raises RuntimeError for an incomplete one."""
    streams = [_Stream(socket.create_connection(("127.0.0.1", server.port))) for _ in texts]
    processor_s = processor_seconds(server.pid)
    with selectors.DefaultSelector() as selector:
        started = time.perf_counter()
        for one, text in zip(streams, texts, strict=True):
            selector.register(one.socket, selectors.EVENT_READ, one)
            one.socket.sendall(post("/v1/chat/completions", _body(server, text, tokens)))
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"{server.name} does not answer")
            for key, _ in ready:
                if not _read(key.data, started):
                    selector.unregister(key.fileobj)
        seconds = time.perf_counter() - started
    made = sum(map(_count, streams))
    spent_s = processor_seconds(server.pid) - processor_s
    return Streamed(made, seconds, fmean(one.first_s for one in streams), spent_s)


def compared(count: int, pairs: Sequence[tuple[Streamed, Streamed]]) -> list[tuple[str, ...]]:
    """Return a line for each figure, with ratios that are above 1 where omlx is better."""
    lines: list[tuple[str, ...]] = []
    for name, figure, smaller in FIGURES:
        mine, other = (Series(tuple(map(figure, side))) for side in zip(*pairs, strict=True))
        ratio = other.over(mine) if smaller else mine.over(other)
        shown = f"{mine.median:.2f}", f"{other.median:.2f}"
        spread = f"{ratio.median:.3f}", f"{ratio.least:.3f}", f"{ratio.most:.3f}"
        lines.append((str(count), name, *shown, *spread))
    return lines


def _body(server: Server, text: str, tokens: int) -> dict[str, Any]:
    return {
        "model": server.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _read(one: _Stream, started: float) -> bool:
    """Receive what is there. Return whether more may follow."""
    received = one.socket.recv(1 << 16)
    one.received += received
    if not one.first_s and _TEXT.search(one.received):
        one.first_s = time.perf_counter() - started
    if not received:
        one.socket.close()
    return bool(received)


def _count(one: _Stream) -> int:
    counts = _COUNT.findall(one.received)
    if not counts:
        raise RuntimeError(f"a stream has no end: {one.received[-300:]!r}")
    return int(counts[-1])


def _to_json(ours: Streamed, theirs: Streamed) -> Json:
    names = ("tokens", "seconds", "first_s", "processor_s")
    return {
        side: {name: getattr(streamed, name) for name in names}
        for side, streamed in (("omlx", ours), ("mlx_lm", theirs))
    }
