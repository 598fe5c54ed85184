"""`python -m lab.bench clients`: agents that edit code over HTTP, by omlx and by mlx-lm's server.

Both serve the same weights and answer greedily; omlx speculates as it does by default. They take
turns with the same requests. A rate counts all tokens of all clients from the first request to the
last byte.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from lab.bench import inflate
from lab.bench.http.server import Server, call
from lab.bench.prefix import side_by_side
from omlx.bench.console import Json, add, environment, numbers, positive, table, write_json
from omlx.bench.workloads import WORKLOADS, questions
from omlx.measure.spread import Series, run_pair

HEAD: Final = ("clients", "omlx, tokens/s", "mlx-lm, tokens/s", "ratio (median)", "least", "most")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--json")
    inflate.add_arguments(parser, draft=False)
    parser.add_argument(
        "--clients", type=numbers, default=(2, 4), metavar="N,…", help="how many at once"
    )
    for flag, default, text in (
        ("--context", 600, "tokens of prompt and answer, about"),
        ("--trials", 5, "default %(default)s"),
    ):
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table."""
    load_before = os.getloadavg()
    results: list[Json] = []
    rows = [HEAD]
    with side_by_side(args.model, args.inflate, speculation="auto") as (servers, model):
        (omlx, other), (parameters, tokenizer) = servers, model
        for clients in args.clients:
            ours, theirs = compare(omlx, other, tokenizer, clients, args.context, args.trials)
            ratio = ours.over(theirs)
            cells = f"{ours.median:.0f}", f"{theirs.median:.0f}"
            ratios = f"{ratio.median:.2f}", f"{ratio.least:.2f}", f"{ratio.most:.2f}"
            rows.append((str(clients), *cells, *ratios))
            rates = {"omlx": list(ours.values), "mlx_lm": list(theirs.values)}
            results.append({"clients": clients, **rates, "ratio": ratio.median})
    report: Json = {
        **environment(load_before),
        "model": {"name": args.model.name, "parameters": parameters},
        "settings": {"context": args.context, "trials": args.trials, "inflate": args.inflate},
        "clients": results,
    }
    write_json(args.json, report)
    sys.stdout.write(f"{table(rows)}\n")
    return 0


def compare(
    omlx: Server, other: Server, tokenizer: Any, clients: int, context: int, trials: int
) -> tuple[Series, Series]:
    """Return tokens per second of both servers. The first trial warms up and is not counted."""
    edit = next(workload for workload in WORKLOADS if workload.name == "small edit")
    rates: list[tuple[float, float]] = []
    for trial in range(trials + 1):
        asked = questions(edit, trial, clients, context, lambda text: len(tokenizer.encode(text)))
        bodies = [
            {
                "messages": question.messages,
                "max_tokens": question.longest,
                "temperature": 0,
                "chat_template_kwargs": {"enable_thinking": question.thinks},
            }
            for question in asked
        ]
        pair = run_pair(
            partial(rate, omlx, bodies), partial(rate, other, bodies), swap=trial % 2 == 1
        )
        if trial:
            rates.append(pair)
    ours, theirs = zip(*rates, strict=True)
    return Series(ours), Series(theirs)


def rate(server: Server, bodies: Sequence[Json]) -> float:
    """Send requests at once; return the tokens per second of all answers together."""

    def tokens(body: Json) -> int:
        answer = call(server.port, "POST", "/v1/chat/completions", {**body, "model": server.model})
        made: int = answer["usage"]["completion_tokens"]
        return made

    with ThreadPoolExecutor(len(bodies)) as pool:
        started = time.perf_counter()
        total = sum(pool.map(tokens, bodies))
        return total / (time.perf_counter() - started)
