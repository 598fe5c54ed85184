"""`omlx bench stages`, also with a model that is inflated until its steps are long enough."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from benchmarks import inflate
from omlx.bench.stages import command
from omlx.models.pool.load_weights import open_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command.add_arguments(parser)
    inflate.add_arguments(parser, draft=False)


def run(args: argparse.Namespace) -> int:
    if not args.inflate:
        return command.run(args)
    with tempfile.TemporaryDirectory(prefix="omlx-inflated-") as folder:
        args.model = save_inflated(args.model, args.inflate, Path(folder) / args.model.name)
        return command.run(args)


def save_inflated(source: Path, at_least: int, folder: Path) -> Path:
    """Copy a model to `folder` with identity layers up to `at_least` parameters; return it."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    model, config = open_model(source, "auto", trusted=False)
    inflate.inflate(model, at_least)
    weights = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights))
    layers = len(cast(Any, model).layers)
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return folder
