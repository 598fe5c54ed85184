"""`python -m lab.bench prefix`: prefix caches of omlx and of mlx-lm's server, side by side.

Measures the time to first token, cold and with a cached prefix, and how many prompt tokens an
agent's conversation computes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load

from lab.bench import inflate
from lab.bench.conversation import Conversation, FirstToken, ask, converse, first_tokens
from lab.bench.http.server import Server, free_port, omlx_server, running
from omlx.bench.console import Json, add, environment, positive, table, write_json
from omlx.bench.subject import flat_parameters, parameter_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--json")
    inflate.add_arguments(parser, draft=False)
    for flag, default, text in (
        ("--prefix", 2000, "tokens that two prompts share"),
        ("--trials", 5, "default %(default)s"),
        ("--turns", 20, "of the conversation"),
        ("--tokens", 32, "longest answer of a turn"),
    ):
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=text)
    parser.add_argument("--alone", action="store_true", help="without mlx-lm's server")


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the tables."""
    load_before = os.getloadavg()
    with side_by_side(args.model, args.inflate, alone=args.alone) as (servers, model):
        parameters, tokenizer = model
        firsts = first_tokens(servers, tokenizer, args.prefix, args.trials)
        talks = {}
        for server in servers:
            answer_to = partial(ask, server, max_tokens=args.tokens)
            talks[server.name] = converse(answer_to, tokenizer, args.turns)
    names = ("prefix", "trials", "turns", "tokens", "inflate")
    report: Json = {
        **environment(load_before),
        "model": {"name": args.model.name, "parameters": parameters},
        "settings": {name: getattr(args, name) for name in names},
        "first_token": {name: times.to_json() for name, times in firsts.items()},
        "conversation": {name: talk.to_json() for name, talk in talks.items()},
    }
    write_json(args.json, report)
    sys.stdout.write(to_text(firsts, talks))
    return 0


@contextmanager
def side_by_side(
    source: Path, inflate_to: int, *flags: str, speculation: str = "off", alone: bool = False
) -> Iterator[tuple[list[Server], tuple[int, Any]]]:
    """Serve a model as `write_model` writes it with omlx, and unless `alone` with mlx-lm.

    Yields the servers, omlx first, and what `write_model` returns. `flags` are of `omlx serve`.
    """
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as work, ExitStack() as stack:
        folder, home = Path(work) / source.name, Path(work) / "home"
        model = write_model(source, folder, inflate_to)
        ours = omlx_server(folder, home, *flags, speculation=speculation)
        servers = [stack.enter_context(ours)]
        if not alone:
            servers.append(stack.enter_context(mlx_lm_server(folder)))
        yield servers, model


@contextmanager
def mlx_lm_server(folder: Path) -> Iterator[Server]:
    """Serve a model with mlx-lm."""
    port = free_port()
    flags = ("--model", str(folder), "--port", str(port), "--host", "127.0.0.1")
    with running(["mlx_lm", "server", *flags], port) as pid:
        yield Server("mlx-lm", port, str(folder), pid)


def write_model(source: Path, folder: Path, inflate_to: int) -> tuple[int, Any]:
    """Write the model as float32, with at least `inflate_to` parameters, for both servers to load.

    Returns its parameter count and its tokenizer.
    """
    model, tokenizer, *_ = load(str(source))
    model.set_dtype(mx.float32)
    inflate.inflate(model, inflate_to)
    ignored = shutil.ignore_patterns("model*.safetensors*", "model-package.json")
    shutil.copytree(source, folder, ignore=ignored)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": len(model.layers), "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = dict(flat_parameters(model))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return parameter_count(model), tokenizer


def to_text(firsts: Mapping[str, FirstToken], talks: Mapping[str, Conversation]) -> str:
    times: list[Sequence[str]] = [
        ("first token", "cold, ms (least)", "hit, ms (least)", "hit / cold (median)")
    ]
    for name, first in firsts.items():
        cold, hit = 1000 * first.cold.least, 1000 * first.hit.least
        times.append((name, f"{cold:.1f}", f"{hit:.1f}", f"{100 * first.ratio:.2f} %"))
    turns: list[Sequence[str]] = [
        ("conversation", "tokens of prompts", "computed", "new", "computed / new")
    ]
    for name, talk in talks.items():
        sums = (str(sum(counts)) for counts in (talk.prompt, talk.computed, talk.new))
        turns.append((name, *sums, f"{talk.ratio:.3f}"))
    return f"{table(times)}\n\n{table(turns)}\n"
