"""The flags that several benchmarks share, and how their values are parsed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final


def model_dir(text: str) -> Path:
    """Parse a model directory."""
    path = Path(text).expanduser()
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a model folder: it has no config.json")
    return path


def output(text: str) -> Path:
    """Parse a file to write, and fail now rather than after hours of measuring."""
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written: it must be a file in a folder that is there"
        )
    return path


def one_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of names separated by commas, each among `choices`."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        unknown = set(chosen) - set(choices)
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: choose from {', '.join(choices)}"
            )
        return chosen

    return names


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def not_negative(text: str) -> float:
    """Parse a number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:  # NaN is refused too
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """Parse `1,4,8`, or `1-8` for all from 1 to 8. Returns each once, the least first."""
    first, dash, last = text.partition("-")
    values: Iterable[int] = map(positive, text.split(","))
    if dash:
        values = range(positive(first), positive(last) + 1)
    ordered = tuple(sorted(set(values)))
    if not ordered:
        raise argparse.ArgumentTypeError(f"{text!r} has no numbers: the first is above the last")
    return ordered


FLAGS: Final[dict[str, dict[str, Any]]] = {
    "--model": {
        "type": model_dir,
        "metavar": "DIR",
        "required": True,
        "help": "folder of the model",
    },
    "--draft": {
        "type": model_dir,
        "metavar": "DIR",
        "help": "folder of a draft model; else nothing that needs one",
    },
    "--dtype": {
        "choices": ("auto", "float32", "bfloat16", "float16"),
        "default": "auto",
        "help": "convert the weights; auto, the default, as the server does: float32 on a CPU",
    },
    "--quantize": {
        "type": int,
        "choices": (2, 3, 4, 6, 8),
        "metavar": "BITS",
        "help": "quantize the weights",
    },
    "--json": {"type": output, "metavar": "FILE", "help": "write everything, raw samples too"},
}


def add(parser: argparse.ArgumentParser, *flags: str) -> None:
    """Add those of `FLAGS` to `parser`."""
    for flag in flags:
        parser.add_argument(flag, **FLAGS[flag])
