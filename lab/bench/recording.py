"""`python -m lab.bench recording`: what prefixes on disk and recorded answers cost while decoding.

Three servers take turns with the same short answers, once they are calibrated. The third one writes
both, its requests have a key; it is compared with the mean of the two that write neither, in every
trial. How far those are apart shows what two processes of one program differ by: therefore the
servers are started again in each round. Every trial has new prompts, so that there is something to
write.
"""

from __future__ import annotations

import argparse
import math
import operator
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

from lab.bench.console import Json, add, environment, numbers, positive, table, write_json
from lab.bench.http.server import Server, call, omlx_server, processor_seconds, run_streams
from lab.bench.series import Series
from lab.bench.workloads import prompts
from omlx.measure.texts import TEXTS

OFF: Final = ("--prefix-disk", "off", "--answer-disk", "off")
ON: Final = ("--prefix-disk", "1GB")
HEAD: Final = (
    "streams",
    "trials",
    "off, tokens/s",
    "off / off, elapsed (95 %)",
    "on / off",
    "off / off, processor time",
    "on / off",
)
CALIBRATION_S: Final = 1200.0
"""Seconds; a model of 135 million parameters takes more than 240 on two cores."""
IDLE_S: Final = 0.3
"""Seconds of processor time, of one second, below which a server has nothing to do."""
SYSTEM: Final = 2_000
"""Characters of the system message, more than 512 tokens."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second of elapsed time, and of the server's processor time, by trial."""

    elapsed: Series
    processor: Series

    def __add__(self, other: Rates) -> Rates:
        elapsed = Series(self.elapsed.values + other.elapsed.values)
        return Rates(elapsed, Series(self.processor.values + other.processor.values))


@dataclass(frozen=True, slots=True)
class Cost:
    """The rates of `streams` requests at once: twice without records, and with them."""

    streams: int
    off: Rates
    control: Rates
    on: Rates

    @property
    def cells(self) -> tuple[str, ...]:
        off, control, on = self.off, self.control, self.on
        elapsed = _ratios(off.elapsed, control.elapsed, on.elapsed)
        processor = _ratios(off.processor, control.processor, on.processor)
        trials = len(off.elapsed.values)
        return (str(self.streams), str(trials), f"{off.elapsed.median:.0f}", *elapsed, *processor)

    def to_json(self) -> Json:
        sides = (("off", self.off), ("control", self.control), ("on", self.on))
        return {"streams": self.streams} | {
            name: {"elapsed": rates.elapsed.to_json(), "processor": rates.processor.to_json()}
            for name, rates in sides
        }

    def __add__(self, other: Cost) -> Cost:
        """Return the trials of both."""
        off, control = self.off + other.off, self.control + other.control
        return Cost(self.streams, off, control, self.on + other.on)


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
        "--trials", type=positive, default=1000, metavar="N", help="at most, in each round"
    )
    parser.add_argument("--rounds", type=positive, default=2, metavar="N", help="default 2")
    parser.add_argument(
        "--seconds", type=positive, default=450, metavar="S", help="in all; default %(default)s"
    )
    parser.add_argument("--tokens", type=positive, default=300, metavar="N", help="of an answer")


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table."""
    load_before, started = os.getloadavg(), time.monotonic()
    rounds = []
    for number in range(1, args.rounds + 1):
        rounds.append(measure(args, started + args.seconds * number / args.rounds))
    costs = [reduce(operator.add, costs) for costs in zip(*rounds, strict=True)]
    report: Json = {
        **environment(load_before),
        "model": args.model.name,
        "draft": args.draft and args.draft.name,
        "settings": {
            "speculation": args.speculation,
            "rounds": args.rounds,
            "seconds": args.seconds,
            "tokens": args.tokens,
        },
        "streams": [cost.to_json() for cost in costs],
    }
    write_json(args.json, report)
    sys.stdout.write(f"{table([HEAD, *(cost.cells for cost in costs)])}\n")
    return 0


def measure(args: argparse.Namespace, until: float) -> list[Cost]:
    """Start the servers and let them take turns `until` a time of the monotonic clock in seconds.
    Return the cost for each number of streams, which have equal shares of the time.
    """
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as work, ExitStack() as stack:
        start = partial(served, stack, args, Path(work))
        servers = [start("off", OFF), start("control", OFF), start("on", ON)]
        for server in servers:
            wait_until_calibrated(server)
        for left in range(len(args.streams), 0, -1):
            now = time.monotonic()
            count = args.streams[-left]
            end = now + (until - now) / left
            costs.append(compare(servers, count, args.trials, args.tokens, end))
    return costs


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

    A server is calibrated before it compares widths bit by bit, which keeps it busy as well; that
    is not seen where processor time cannot be read. Raises RuntimeError after `CALIBRATION_S`.
    """
    deadline, spent_s = time.monotonic() + CALIBRATION_S, -math.inf
    while time.monotonic() < deadline:
        status = call(server.port, "GET", f"/v1/models/{server.model}")
        now_s = processor_seconds(server.pid)
        busy = now_s - spent_s >= IDLE_S  # never with NaN
        if status["speculation"]["calibration"] != "pending" and not busy:
            return
        spent_s = now_s
        time.sleep(1)  # a status has no event to wait for
    raise RuntimeError(f"a server is still busy with itself after {CALIBRATION_S:.0f} s")


def compare(servers: Sequence[Server], count: int, trials: int, tokens: int, until: float) -> Cost:
    """Measure `count` streams on servers that are off, off and on, in turns, so many times or
    `until` a time. The first trial warms up and is not counted, the second one always is.
    """
    sides: list[list[tuple[float, float]]] = [[] for _ in servers]
    for trial in range(trials + 1):
        if trial > 1 and time.monotonic() > until:
            break
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
    tokens, seconds = run_streams(server.port, bodies, headers)
    return tokens / seconds, tokens / (processor_seconds(server.pid) - before)


def body(trial: int, number: int, tokens: int) -> dict[str, Any]:
    """Return a greedy stream of so many tokens, whose prompt no other trial has. All share a system
    message that is long enough for their prefixes to be written before they return.
    """
    texts = prompts("edit")
    text = f"Task {trial}.{number}. {texts[number % len(texts)]}"
    system = (TEXTS / "functions.txt").read_text(encoding="utf-8")[:SYSTEM]
    return {
        "temperature": 0,
        "stream": True,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
    }


def _ratios(off: Series, control: Series, on: Series) -> tuple[str, str]:
    """Return the ratios off / off, and on / the geometric mean of both that are off."""
    means = Series(tuple(map(math.sqrt, map(operator.mul, off.values, control.values))))
    return _ratio(control.over(off)), _ratio(on.over(means))


def _ratio(ratios: Series) -> str:
    """Return the median and its confidence interval."""
    low, high = ratios.interval
    return f"{ratios.median:.3f} ({low:.3f} to {high:.3f})"
