"""What the bench reads from its command line: folders, names, numbers, amounts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def model_dir(text: str) -> Path:
    path = Path(text).expanduser()
    if not (path / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a model folder: it has no config.json")
    return path


def one_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A list of names separated by commas, each among `choices`."""

    def names(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        if unknown := set(found) - set(choices):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(choices)}")
        return found

    return names


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def numbers(text: str) -> tuple[int, ...]:
    """`1,4,8`, or `1-8` for all from 1 to 8."""
    first, dash, last = text.partition("-")
    if dash:
        return tuple(range(positive(first), positive(last) + 1))
    return tuple(positive(part) for part in text.split(","))


def amount(text: str) -> int:
    """`20M`, `1.5B`, `500k` or a plain number."""
    factor = {"k": 10**3, "m": 10**6, "b": 10**9}.get(text[-1:].lower(), 1)
    try:
        return int(float(text[:-1] if factor > 1 else text) * factor)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters such as 20M") from None
