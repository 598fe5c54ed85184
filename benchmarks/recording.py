"""`python -m benchmarks recording`: what prefixes on disk and recorded answers cost while decoding.

Three servers take turns with the same streams, once they are calibrated. Two write neither: how far
they are apart is what the third, which writes both, is compared with; its requests have a key.
Every trial has new prompts, so that there is something to write.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from omlx.bench.arguments import add, numbers, positive
from omlx.bench.http import streams
from omlx.bench.http.server import Server, call, omlx_server, processor_seconds
from omlx.bench.prompts import prompts
from omlx.bench.report import Json, environment, table, write_json
from omlx.measure.spread import Series

OFF: Final = ("--prefix-disk", "off", "--answer-disk", "off")
ON: Final = ("--prefix-disk", "1GB")
HEAD: Final = (
    "streams",
    "off, tokens/s",
    "off / off, elapsed (least to most)",
    "on / off",
    "off / off, processor time",
    "on / off",
)
CALIBRATION_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of elapsed time, and of the server's processor time, by trial."""

    elapsed: Series
    processor: Series


@dataclass(frozen=True, slots=True)
class Cost:
    """The rates of `streams` requests at once: twice without records, and with them."""

    streams: int
    off: Rates
    control: Rates
    on: Rates

    @property
    def cells(self) -> tuple[str, ...]:
        sides, off = (self.control, self.on), self.off
        elapsed = [_ratio(side.elapsed.over(off.elapsed)) for side in sides]
        processor = [_ratio(side.processor.over(off.processor)) for side in sides]
        return (str(self.streams), f"{off.elapsed.median:.0f}", *elapsed, *processor)

    def to_json(self) -> Json:
        sides = (("off", self.off), ("control", self.control), ("on", self.on))
        return {"streams": self.streams} | {
            name: {"elapsed": rates.elapsed.to_json(), "processor": rates.processor.to_json()}
            for name, rates in sides
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--draft", "--json")
    parser.add_argument(
        "--speculation",
        choices=("off", "draft", "auto"),
        default="off",
        help="default %(default)s; drafts of draft have 4 tokens",
    )
    parser.add_argument(
        "--streams", type=numbers, default=(1, 8), metavar="N,…", help="how many at once"
    )
    parser.add_argument(
        "--trials", type=positive, default=5, metavar="N", help="default %(default)s"
    )
    parser.add_argument("--tokens", type=positive, default=600, metavar="N", help="of an answer")


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table."""
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as work, ExitStack() as stack:
        start = partial(served, stack, args, Path(work))
        servers = [start("off", OFF), start("control", OFF), start("on", ON)]
        for server in servers:
            wait_until_calibrated(server)
        costs = [compare(servers, n, args.trials, args.tokens) for n in args.streams]
    report: Json = {
        **environment(load_before),
        "model": args.model.name,
        "draft": args.draft and args.draft.name,
        "settings": {"speculation": args.speculation, "trials": args.trials, "tokens": args.tokens},
        "streams": [cost.to_json() for cost in costs],
    }
    write_json(args.json, report)
    sys.stdout.write(f"{table([HEAD, *(cost.cells for cost in costs)])}\n")
    return 0


def served(
    stack: ExitStack, args: argparse.Namespace, work: Path, name: str, flags: Sequence[str]
) -> Server:
    """Start a server, with a home folder of its own, that ends with `stack`."""
    flags = (*flags, "--max-concurrent-requests", str(max(args.streams)))
    if args.draft is not None:
        flags = (*flags, "--draft-model", str(args.draft.resolve()))
    if args.speculation == "draft":  # what a policy decides depends on times
        flags = (*flags, "--num-draft-tokens", "4")
    return stack.enter_context(
        omlx_server(args.model, work / name, *flags, speculation=args.speculation)
    )


def wait_until_calibrated(server: Server) -> None:
    """Wait, so that no server measures its passes while another one is measured.

    Raises RuntimeError after `CALIBRATION_S`.
    """
    deadline = time.monotonic() + CALIBRATION_S
    while time.monotonic() < deadline:
        status = call(server.port, "GET", f"/v1/models/{server.model}")
        if status["speculation"]["calibration"] != "pending":
            return
        time.sleep(0.5)  # the server says nothing when it is done
    raise RuntimeError(f"a server is not calibrated after {CALIBRATION_S:.0f} s")


def compare(servers: Sequence[Server], count: int, trials: int, tokens: int) -> Cost:
    """Measure `count` streams on servers that are off, off and on, in turns. The first trial warms
    up and is not counted.
    """
    sides: list[list[tuple[float, float]]] = [[] for _ in servers]
    for trial in range(trials + 1):
        bodies = [body(trial, number, tokens) for number in range(count)]
        keys = [f"Idempotency-Key: {count}-{trial}-{number}" for number in range(count)]
        for turn in range(len(servers)):
            place = (trial + turn) % len(servers)
            headers = keys if place == len(servers) - 1 else ()
            rates = rate(servers[place], bodies, headers)
            if trial:
                sides[place].append(rates)
    made = [Rates(*(Series(values) for values in zip(*side, strict=True))) for side in sides]
    return Cost(count, *made)


def rate(server: Server, bodies: Sequence[Json], headers: Sequence[str]) -> tuple[float, float]:
    """Return tokens per second of elapsed and of processor time."""
    before = processor_seconds(server.pid)
    tokens, seconds = streams.run(server.port, bodies, headers)
    return tokens / seconds, tokens / (processor_seconds(server.pid) - before)


def body(trial: int, number: int, tokens: int) -> dict[str, Any]:
    """Return a greedy stream of so many tokens, whose prompt no other trial has."""
    texts = prompts("edit")
    text = f"Task {trial}.{number}. {texts[number % len(texts)]}"
    return {
        "temperature": 0,
        "stream": True,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def _ratio(ratios: Series) -> str:
    return f"{ratios.median:.3f} ({ratios.least:.3f} to {ratios.most:.3f})"
