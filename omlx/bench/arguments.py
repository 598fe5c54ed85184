"""What the bench reads from its command line: the flags that several commands have, and how their values are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final


def model_dir(text: str) -> Path:
    path = Path(text).expanduser()
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a model folder: it has no config.json")
    return path


def output(text: str) -> Path:
    """A file to write: what would fail after hours of measuring fails before."""
    path = Path(text).expanduser()
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written: it must be a file in a folder that is there"
        )
    return path


def one_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A list of names separated by commas, each among `choices`."""

    def names(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        if unknown := set(found) - set(choices):
            raise argparse.ArgumentTypeError(
                f"{', '.join(sorted(unknown))}: choose from {', '.join(choices)}"
            )
        return found

    return names


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """`1,4,8`, or `1-8` for all from 1 to 8. Each once, the least first."""
    first, dash, last = text.partition("-")
    several: Iterable[int] = (
        range(positive(first), positive(last) + 1) if dash else map(positive, text.split(","))
    )
    if not (found := tuple(sorted(set(several)))):
        raise argparse.ArgumentTypeError(f"{text!r} has no numbers: the first is above the last")
    return found


def amount(text: str) -> int:
    """`20M`, `1.5B`, `500k` or a plain number."""
    factor = {"k": 10**3, "m": 10**6, "b": 10**9}.get(text[-1:].lower(), 1)
    try:
        value = int(float(text[:-1] if factor > 1 else text) * factor)
    except (ValueError, OverflowError):
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters such as 20M")
    return value


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
    "--dtype": {"choices": ("float32", "bfloat16", "float16"), "help": "convert the weights"},
    "--quantize": {
        "type": int,
        "choices": (2, 3, 4, 6, 8),
        "metavar": "BITS",
        "help": "quantize the weights",
    },
    "--inflate": {
        "type": amount,
        "default": 0,
        "metavar": "N",
        "help": "add identity layers up to N parameters, such as 20M",
    },
    "--inflate-draft": {"action": "store_true", "help": "grow the draft by the same factor"},
    "--json": {"type": output, "metavar": "FILE", "help": "write everything, raw samples too"},
    "--plot": {"type": output, "metavar": "FILE", "help": "write the ratios as SVG"},
}


def add(parser: argparse.ArgumentParser, *flags: str) -> None:
    """Give `parser` those of `FLAGS`."""
    for flag in flags:
        parser.add_argument(flag, **FLAGS[flag])
