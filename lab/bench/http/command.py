"""`python -m lab.bench http`: tokens per second of streams over HTTP against the engine alone.

The server is a process of its own. The engine alone runs in this one, which while it measures the
server only reads bytes. The two take turns with the same requests, greedily and without
speculation. The time to the first byte of an error is measured too.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from lab.bench.console import Json, add, environment, numbers, positive, table, write_json
from lab.bench.http.server import Server, omlx_server, run_streams, seconds_to_error
from lab.bench.series import Series, run_pair
from lab.bench.workloads import prompts
from omlx.engine.build import build_loop
from omlx.engine.speculation.strategy import OFF
from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    Limits,
    Request,
    Sampling,
    Speculation,
    TokensCommitted,
)
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.load_weights import load

ERRORS: Final = 50
HEAD: Final = (
    "streams",
    "engine, tokens/s",
    "HTTP, tokens/s",
    "HTTP / engine (median)",
    "least",
    "most",
)


@dataclass(frozen=True, slots=True)
class StreamRates:
    """Tokens per second of `streams` requests at once, by trial."""

    streams: int
    http: Series
    engine: Series

    @property
    def ratio(self) -> Series:
        return self.http.over(self.engine)

    @property
    def cells(self) -> tuple[str, ...]:
        rates = f"{self.engine.median:.0f}", f"{self.http.median:.0f}"
        ratio = self.ratio
        ratios = f"{ratio.median:.3f}", f"{ratio.least:.3f}", f"{ratio.most:.3f}"
        return (str(self.streams), *rates, *ratios)

    def to_json(self) -> Json:
        return {
            "streams": self.streams,
            "http": list(self.http.values),
            "engine": list(self.engine.values),
            "ratio": self.ratio.median,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--json")
    parser.add_argument(
        "--streams", type=numbers, default=(1, 16), metavar="N,…", help="how many at once"
    )
    parser.add_argument(
        "--trials", type=positive, default=7, metavar="N", help="default %(default)s"
    )
    parser.add_argument("--tokens", type=positive, default=300, metavar="N", help="longest answer")


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table."""
    load_before = os.getloadavg()
    rows = max(args.streams)
    with (
        tempfile.TemporaryDirectory(prefix="omlx-bench-") as home,
        omlx_server(args.model, Path(home), "--max-concurrent-requests", str(rows)) as server,
        engine_alone(args.model, rows) as engine,
    ):
        rates = [compare(server, engine, n, args.trials, args.tokens) for n in args.streams]
        errors = sorted(seconds_to_error(server.port) for _ in range(ERRORS))
    report: Json = {
        **environment(load_before),
        "model": args.model.name,
        "settings": {"trials": args.trials, "tokens": args.tokens},
        "streams": [rate.to_json() for rate in rates],
        "error_seconds": errors,
    }
    write_json(args.json, report)
    sys.stdout.write(to_text(rates, errors))
    return 0


def compare(
    server: Server, engine: EngineAlone, count: int, trials: int, max_tokens: int
) -> StreamRates:
    """Measure `count` streams. The first trial warms up and is not counted.

    Raises RuntimeError if the two sides made different numbers of tokens.
    """
    bodies, ids = [], []
    for number in range(count):
        bodies.append(body(number, max_tokens))
        ids.append(tuple(server.tokens(bodies[-1]["messages"])))
    rates: list[tuple[float, float]] = []
    for trial in range(trials + 1):
        (http_tokens, http_s), (engine_tokens, engine_s) = run_pair(
            partial(run_streams, server.port, bodies),
            partial(engine.run, ids, max_tokens),
            swap=trial % 2 == 1,
        )
        if http_tokens != engine_tokens:
            made = sorted({http_tokens, engine_tokens})
            raise RuntimeError(f"with HTTP and without it, {made} tokens were made")
        if trial:
            rates.append((http_tokens / http_s, engine_tokens / engine_s))
    http, alone = zip(*rates, strict=True)
    return StreamRates(count, Series(http), Series(alone))


def body(number: int, max_tokens: int) -> dict[str, Any]:
    """Return a streamed, greedy request without speculation."""
    texts = prompts("edit")
    return {
        "temperature": 0,
        "speculation": "off",
        "stream": True,
        "messages": [{"role": "user", "content": texts[number % len(texts)]}],
        "max_tokens": max_tokens,
    }


def to_text(rates: Sequence[StreamRates], errors: Sequence[float]) -> str:
    """`errors`: seconds to the first byte."""
    rows = table([HEAD, *(rate.cells for rate in rates)])
    times = f"{1000 * median(errors):.1f} ms (median), {1000 * max(errors):.1f} ms (most)"
    return f"{rows}\n\nfirst byte of an error: {times}\n"


MODEL: Final = "alone"
TIMEOUT_S: Final = 600


class EngineAlone:
    """Runs prompts of token ids greedily, without speculation, all at once."""

    def __init__(self, engine: EngineThread, stop_ids: frozenset[int]) -> None:
        self._engine, self._stop_ids = engine, stop_ids
        self._runs = 0

    def run(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> tuple[int, float]:
        """Return the tokens made, and the seconds from the first submission to the last token.

        Raises RuntimeError for a request that failed.
        """
        self._runs += 1
        ended, tokens, failures = threading.Semaphore(0), [0], list[Failed]()

        def receive(events: Sequence[Event], /) -> None:
            for event in events:
                if isinstance(event, TokensCommitted):
                    tokens[0] += len(event.tokens)
                elif isinstance(event, Finished | Failed):
                    if isinstance(event, Failed):
                        failures.append(event)
                    ended.release()

        started = time.perf_counter()
        for number, prompt in enumerate(prompts):
            request = Request(
                f"{self._runs}-{number}",
                prompt,
                Sampling(temperature=0.0),
                max_tokens,
                self._stop_ids,
                speculation=Speculation(OFF),
            )
            self._engine.submit(MODEL, request, receive)
        for _ in prompts:
            if not ended.acquire(timeout=TIMEOUT_S):
                raise RuntimeError("the engine does not answer")
        if failures:
            raise RuntimeError(failures[0].error.message)
        return tokens[0], time.perf_counter() - started


@contextmanager
def engine_alone(folder: Path, rows: int) -> Iterator[EngineAlone]:
    """Load a model into an engine for at most `rows` requests at once."""
    engine = EngineThread()
    engine.start()
    try:
        loaded = engine.call(lambda: load(ModelEntry(MODEL, folder, "bench"), "auto")).result()
        limits = Limits(context_length=loaded.context_length, max_rows=rows)
        loop = engine.call(lambda: build_loop(loaded.model, loaded.vocab_size, limits)).result()
        engine.call(lambda: engine.attach(MODEL, loop)).result()
        yield EngineAlone(engine, loaded.stop_ids)
    finally:
        engine.stop()
