"""`omlx bench prefix`: time to the first token cold and with a kept prefix, and what an agent's conversation computes,
by omlx and by mlx-lm's server, as processes side by side."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load

from omlx.bench.arguments import add, positive
from omlx.bench.inflate import flat, inflate, parameters
from omlx.bench.prefix.servers import mlx_lm_server, omlx_server
from omlx.bench.prefix.talk import FirstToken, Talk, converse, first_tokens
from omlx.bench.report import machine, table, versions, write_json
from omlx.bench.result import Json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags of `omlx bench prefix`."""
    add(parser, "--model", "--inflate", "--json")
    parser.add_argument(
        "--prefix", type=positive, default=2000, metavar="N", help="tokens that two prompts share"
    )
    parser.add_argument(
        "--trials", type=positive, default=5, metavar="N", help="default %(default)s"
    )
    parser.add_argument(
        "--turns", type=positive, default=20, metavar="N", help="of the conversation"
    )
    parser.add_argument(
        "--tokens", type=positive, default=32, metavar="N", help="longest answer of a turn"
    )
    parser.add_argument("--alone", action="store_true", help="without mlx-lm's server")


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the tables."""
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as work, ExitStack() as stack:
        folder = Path(work) / args.model.name
        held, tokenizer = write_model(args.model, folder, args.inflate)
        servers = [stack.enter_context(omlx_server(folder, Path(work) / "home"))]
        if not args.alone:
            servers.append(stack.enter_context(mlx_lm_server(folder)))
        firsts = first_tokens(servers, tokenizer, args.prefix, args.trials)
        talks = {
            server.name: converse(server, tokenizer, args.turns, args.tokens) for server in servers
        }
    report: Json = {
        "machine": machine(load_before),
        "versions": versions(),
        "model": {"name": args.model.name, "parameters": held},
        "settings": {
            name: getattr(args, name) for name in ("prefix", "trials", "turns", "tokens", "inflate")
        },
        "first_token": {name: each.to_json() for name, each in firsts.items()},
        "conversation": {name: each.to_json() for name, each in talks.items()},
    }
    write_json(args.json, report)
    sys.stdout.write(to_text(firsts, talks))
    return 0


def write_model(source: Path, folder: Path, inflate_to: int) -> tuple[int, Any]:
    """Write the model as float32, with identity layers up to `inflate_to` parameters, where both servers can load it.
    Returns how many parameters it has, and its tokenizer."""
    model, tokenizer, *_ = load(str(source))
    model.set_dtype(mx.float32)
    inflate(model, inflate_to)
    shutil.copytree(
        source, folder, ignore=shutil.ignore_patterns("*.safetensors*", "model-package.json")
    )
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": len(model.layers), "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(
        str(folder / "model.safetensors"), dict(flat(model)), metadata={"format": "mlx"}
    )
    return parameters(model), tokenizer


def to_text(firsts: dict[str, FirstToken], talks: dict[str, Talk]) -> str:
    rows = [
        (
            name,
            f"{1000 * min(each.cold):.1f}",
            f"{1000 * min(each.hit):.1f}",
            f"{100 * each.ratio:.2f} %",
        )
        for name, each in firsts.items()
    ]
    turns = [
        (
            name,
            str(sum(each.prompt)),
            str(sum(each.computed)),
            str(sum(each.new)),
            f"{each.ratio:.3f}",
        )
        for name, each in talks.items()
    ]
    return (
        "\n\n".join(
            [
                table(
                    [
                        (
                            "first token",
                            "cold, ms (least)",
                            "hit, ms (least)",
                            "hit / cold (median)",
                        ),
                        *rows,
                    ]
                ),
                table(
                    [
                        ("conversation", "tokens of prompts", "computed", "new", "computed / new"),
                        *turns,
                    ]
                ),
            ]
        )
        + "\n"
    )
