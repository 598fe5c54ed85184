"""`omlx bench http`: tokens per second of streams over HTTP against the engine alone, and how soon an error answers.

The server is a process of its own. The engine alone runs in this one, which while it measures the server does nothing
but read bytes. The two take turns; each answers the same questions, greedily and plainly.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from omlx.bench.arguments import add, numbers, positive
from omlx.bench.http import streams
from omlx.bench.http.alone import Alone, alone
from omlx.bench.prefix.servers import Server, omlx_server
from omlx.bench.prompts import WORKLOADS
from omlx.bench.report import machine, table, versions, write_json
from omlx.bench.result import Json

ERRORS = 50


@dataclass(slots=True)
class Compared:
    """Tokens per second of `streams` at once, by trial."""

    streams: int
    http: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Of neighbours in time: what else the machine did counts for both."""
        return [http / engine for http, engine in zip(self.http, self.engine, strict=True)]

    def to_json(self) -> Json:
        return {
            "streams": self.streams,
            "http": self.http,
            "engine": self.engine,
            "ratio": median(self.ratios),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `omlx bench http`."""
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
        alone(args.model, rows) as engine,
    ):
        compared = [compare(server, engine, n, args.trials, args.tokens) for n in args.streams]
        errors = sorted(streams.first_byte_of_an_error(server.port) for _ in range(ERRORS))
    report: Json = {
        "machine": machine(load_before),
        "versions": versions(),
        "model": args.model.name,
        "settings": {"trials": args.trials, "tokens": args.tokens},
        "streams": [each.to_json() for each in compared],
        "error_seconds": errors,
    }
    write_json(args.json, report)
    sys.stdout.write(to_text(compared, errors))
    return 0


def compare(server: Server, engine: Alone, n: int, trials: int, max_tokens: int) -> Compared:
    """The first trial warms up and does not count. Raises RuntimeError where the two did not do the same."""
    bodies = [body(i, max_tokens) for i in range(n)]
    prompts = [tuple(server.tokens(each["messages"])) for each in bodies]
    found = Compared(n)
    sides: list[tuple[list[float], Callable[[], tuple[int, float]]]] = [
        (found.http, lambda: streams.run(server.port, bodies)),
        (found.engine, lambda: engine.run(prompts, max_tokens)),
    ]
    for trial in range(trials + 1):
        made = set()
        for rates, ask in sides:
            tokens, seconds = ask()
            made.add(tokens)
            if trial:
                rates.append(tokens / seconds)
        if len(made) > 1:
            raise RuntimeError(f"with HTTP and without it, {sorted(made)} tokens were made")
        sides.reverse()  # who comes second finds the machine warmer, or slower
    return found


def body(number: int, max_tokens: int) -> dict[str, Any]:
    texts = WORKLOADS["edit"]
    asked = {
        "messages": [{"role": "user", "content": texts[number % len(texts)]}],
        "max_tokens": max_tokens,
    }
    return {"temperature": 0, "speculation": "off", "stream": True, **asked}


def to_text(compared: Sequence[Compared], errors: Sequence[float]) -> str:
    head = (
        "streams",
        "engine, tokens/s",
        "HTTP, tokens/s",
        "HTTP / engine (median)",
        "least",
        "most",
    )
    rows = [
        (
            str(each.streams),
            f"{median(each.engine):.0f}",
            f"{median(each.http):.0f}",
            f"{median(each.ratios):.3f}",
            f"{min(each.ratios):.3f}",
            f"{max(each.ratios):.3f}",
        )
        for each in compared
    ]
    said = f"first byte of an error: {1000 * median(errors):.1f} ms (median), {1000 * max(errors):.1f} ms (most)"
    return f"{table([head, *rows])}\n\n{said}\n"
