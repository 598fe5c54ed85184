"""`python -m lab.bench clients`: clients over HTTP, by omlx and by other servers, in turns.

All serve the same float32 weights, answer greedily and take turns with the same requests, of which
none repeats another. A rate counts all tokens of all clients from the first request to the last
byte; processor time is that of a server's process, steadier than wall time where others run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

from tqdm import tqdm

from lab.bench import inflate
from lab.bench.console import Json, add, environment, numbers, positive, table, write_json
from lab.bench.http.server import (
    TIMEOUT_S,
    Server,
    free_port,
    omlx_server,
    post,
    processor_seconds,
    running,
)
from lab.bench.prefix import mlx_lm_server, write_model
from lab.bench.real_questions import REAL, WORDS
from lab.bench.recording import wait_until_calibrated
from lab.bench.series import Series
from lab.bench.workloads import Question, Workload, questions
from omlx.measure.sample import rotate

ASKED: Final = {workload.name: workload for workload in (*REAL, WORDS)}
SIDES: Final = ("auto", "plain", "mlx-lm", "vllm-mlx")
"""omlx with and without speculation, and other servers."""
_COUNT: Final = re.compile(rb'"completion_tokens": ?(\d+)')
_TEXT: Final = re.compile(rb'"(?:content|reasoning|reasoning_content)": ?"[^"]')


@dataclass(frozen=True, slots=True)
class Streamed:
    """The answers of a trial. Means over clients: `first_s` to the first text, `token_s` a later
    token.
    """

    tokens: int
    seconds: float
    first_s: float
    token_s: float
    processor_s: float
    texts: tuple[str, ...] = ()


FIGURES: Final[dict[str, tuple[Callable[[Streamed], float], bool]]] = {
    "tokens/s": (lambda made: made.tokens / made.seconds, False),
    "first text, ms": (lambda made: 1e3 * made.first_s, True),
    "later text, ms/token": (lambda made: 1e3 * made.token_s, True),
    "processor, ms/token": (lambda made: 1e3 * made.processor_s / made.tokens, True),
}
"""By name: the value, and whether a smaller one is better."""


@dataclass(slots=True)
class _Stream:
    socket: socket.socket
    received: bytes = b""
    first_s: float = 0.0
    end_s: float = 0.0

    def read(self, started: float) -> bool:
        """Receive what is there. Return whether more may follow."""
        received = self.socket.recv(1 << 16)
        self.received += received
        if not self.first_s and _TEXT.search(self.received):
            self.first_s = time.perf_counter() - started
        if not received:
            self.end_s = time.perf_counter() - started
            self.socket.close()
        return bool(received)

    def tokens(self) -> int:
        counts = _COUNT.findall(self.received)
        if not counts:
            raise RuntimeError(f"a stream has no end: {self.received[-300:]!r}")
        return int(counts[-1])

    def text(self) -> str:
        chunks = re.findall(rb"^data: (\{.*\})\r?$", self.received, re.MULTILINE)
        deltas = [choice["delta"] for chunk in chunks for choice in json.loads(chunk)["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    names = [*ASKED]
    add(parser, "--model", "--json")
    inflate.add_arguments(parser, draft=False)
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help=", ".join(names),
    )
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=SIDES[:3], metavar="SIDE", help=str(SIDES)
    )
    parser.add_argument(
        "--vllm-mlx", metavar="PYTHON", default=sys.executable, help="of an environment with it"
    )
    parser.add_argument(
        "--clients", type=numbers, default=(1, 2, 4), metavar="N,…", help="how many at once"
    )
    parser.add_argument(
        "--cold", action="store_true", help="count the first requests, before any calibration"
    )
    parser.add_argument("--dtype", default="float32", help="of omlx's sides; default %(default)s")
    for flag, default, text in (
        ("--context", 600, "tokens of prompt and answer, of edits"),
        ("--tokens", 256, "longest answer"),
        ("--trials", 5, "default %(default)s"),
    ):
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Measure, write the file after each row, print the tables."""
    load_before = os.getloadavg()
    chosen = [ASKED[name] for name in args.workloads]
    samples: dict[tuple[str, int], list[dict[str, Streamed]]] = {}
    with served(args) as (servers, (parameters, tokenizer)):
        count = partial(_length, tokenizer)
        for workload, clients in tqdm([*product(chosen, args.clients)], unit="row", disable=None):
            made = trials(servers, workload, clients, args, count)
            samples[workload.name, clients] = made
            report: Json = {
                **environment(load_before),
                "model": {"name": args.model.name, "parameters": parameters},
                "settings": {name: getattr(args, name) for name in ("context", "tokens", "trials")},
                "rows": [_to_json(*row) for row in samples.items()],
            }
            write_json(args.json, report)
    sys.stdout.write("\n\n".join(table(rows) for rows in tables(samples)) + "\n")
    return 0


@contextmanager
def served(args: argparse.Namespace) -> Iterator[tuple[dict[str, Server], tuple[int, Any]]]:
    """Serve the model by each side. Yield servers by side, and what `write_model` returns."""
    flags = ("--max-concurrent-requests", str(max(args.clients)), "--dtype", args.dtype)
    servers: dict[str, Server] = {}
    with TemporaryDirectory(prefix="omlx-bench-") as work, ExitStack() as stack:
        folder = Path(work) / args.model.name
        model = write_model(args.model, folder, args.inflate)
        for side in args.sides:
            if side == "mlx-lm":
                serving = mlx_lm_server(folder)
            elif side == "vllm-mlx":
                serving = vllm_mlx_server(args.vllm_mlx, folder)
            else:
                strategy = "auto" if side == "auto" else "off"
                serving = omlx_server(folder, Path(work) / side, *flags, speculation=strategy)
            servers[side] = stack.enter_context(serving)
            if side in ("auto", "plain") and not args.cold:
                wait_until_calibrated(servers[side])  # one after another, none beside a measurement
        yield servers, model


@contextmanager
def vllm_mlx_server(python: str, folder: Path) -> Iterator[Server]:
    """Serve a model with vllm-mlx, which batches by a flag alone."""
    port = free_port()
    flags = ("--host", "127.0.0.1", "--port", str(port), "--continuous-batching")
    module = ("vllm_mlx.cli", "serve", str(folder), *flags)
    with running(module, port, python=python) as pid:
        yield Server("vllm-mlx", port, str(folder), pid)


def trials(
    servers: dict[str, Server],
    workload: Workload,
    clients: int,
    args: argparse.Namespace,
    count: Callable[[str], int],
) -> list[dict[str, Streamed]]:
    """Return what each side did, by trial. Unless `cold`, one more warms up, and is not counted."""
    made = []
    for trial in range(args.cold, args.trials + 1):
        asked = questions(workload, trial, clients, args.context, count)
        turns = rotate([*servers], trial)
        done = {side: stream(servers[side], asked, args.tokens) for side in turns}
        made.append({side: done[side] for side in servers})
    return made if args.cold else made[1:]


def stream(server: Server, asked: Sequence[Question], longest: int) -> Streamed:
    """Send all requests at once and read the answers. Raises RuntimeError for an incomplete one."""
    streams = [_Stream(socket.create_connection(("127.0.0.1", server.port))) for _ in asked]
    processor_s = processor_seconds(server.pid)
    with selectors.DefaultSelector() as selector:
        started = time.perf_counter()
        for one, question in zip(streams, asked, strict=True):
            selector.register(one.socket, selectors.EVENT_READ, one)
            body = _body(server, question, longest)
            one.socket.sendall(post("/v1/chat/completions", body))
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"{server.name} does not answer")
            for key, _ in ready:
                if not key.data.read(started):
                    selector.unregister(key.fileobj)
        seconds = time.perf_counter() - started
    spent_s = processor_seconds(server.pid) - processor_s
    return Streamed(
        sum(one.tokens() for one in streams),
        seconds,
        fmean(one.first_s for one in streams),
        fmean((one.end_s - one.first_s) / max(1, one.tokens() - 1) for one in streams),
        spent_s,
        tuple(one.text() for one in streams),
    )


def tables(
    samples: dict[tuple[str, int], list[dict[str, Streamed]]],
) -> Iterator[list[tuple[str, ...]]]:
    """Yield a table for each figure; ratios are above 1 where the first side is better."""
    sides = [*next(iter(samples.values()))[0]]
    ratios = [f"{sides[0]} by {side}" for side in sides[1:]]
    for name, (figure, smaller) in FIGURES.items():
        rows = [(name, "clients", *sides, *ratios)]
        for (workload, clients), made in samples.items():
            series = [Series(tuple(figure(one[side]) for one in made)) for side in sides]
            cells = [f"{one.median:.1f}" for one in series]
            for other in series[1:]:
                ratio = other.over(series[0]) if smaller else series[0].over(other)
                cells.append(f"{ratio.median:.2f} ({ratio.least:.2f}–{ratio.most:.2f})")
            rows.append((workload, str(clients), *cells))
        yield rows
    rows = [("equal texts", "clients", *ratios)]
    for (workload, clients), made in samples.items():
        rows.append((workload, str(clients), *(_equal(made, sides[0], side) for side in sides[1:])))
    yield rows


def _equal(made: Sequence[dict[str, Streamed]], one: str, other: str) -> str:
    pairs = [pair for done in made for pair in zip(done[one].texts, done[other].texts, strict=True)]
    equal = sum(mine == theirs for mine, theirs in pairs)
    return f"{equal} of {len(pairs)}"


def _length(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text))


def _body(server: Server, question: Question, longest: int) -> dict[str, Any]:
    return {
        "model": server.model,
        "messages": question.messages,
        "max_tokens": min(question.longest, longest),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": question.thinks},
    }


def _to_json(row: tuple[str, int], made: Sequence[dict[str, Streamed]]) -> Json:
    workload, clients = row
    found = [{side: asdict(one) for side, one in done.items()} for done in made]
    return {"workload": workload, "clients": clients, "trials": found}
