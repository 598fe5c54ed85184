"""Prompts of a given length: functions to read, and the beginning of one of them to continue.

The text is code, much of which the answer can repeat, as in an agent's edits. No chat template is
involved, so a prompt has exactly so many tokens.
"""

from __future__ import annotations

from itertools import count, cycle
from typing import Final, Protocol

from omlx.bench.prompts import TEXTS
from omlx.measure.texts import read_sections

SEPARATOR: Final = "\n\n\n"
_TASK_LINES: Final = 2
"""Lines of a function from which on the answer is to continue it."""


class Encode(Protocol):
    async def __call__(self, text: str, *, special: bool) -> list[int]:
        """Return the ids of a text; `special` adds the model's leading tokens."""
        ...


class Prompts:
    """Makes prompts with the encoder of a model's texts."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    async def make(self, name: str, tokens: int, streams: int) -> list[tuple[int, ...]]:
        """Return a prompt for each stream, of exactly `tokens` tokens.

        They share all but their ends. No other `name` gives prompts that begin alike.
        """
        tails = [await self._encode(_task(stream), special=False) for stream in range(streams)]
        body = await self._body(name, tokens)
        return [(*body[: tokens - len(tail)], *tail) for tail in tails]

    async def _body(self, name: str, tokens: int) -> list[int]:
        body = await self._encode(f"# {name}{SEPARATOR}", special=True)
        for number, function in zip(count(1), cycle(_functions()), strict=False):
            if len(body) >= tokens:
                break
            text = f"# Part {number}\n{function}{SEPARATOR}"
            body += await self._encode(text, special=False)
        return body[:tokens]


def _functions() -> tuple[str, ...]:
    return read_sections(TEXTS / "functions.txt", SEPARATOR)


def _task(stream: int) -> str:
    """The first lines of one of the first functions, another one for each stream."""
    head = "\n".join(_functions()[stream].split("\n")[:_TASK_LINES])
    return f"\n# Again\n{head}\n"
