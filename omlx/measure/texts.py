"""Texts to measure with, identical on every machine: files of sections, one per prompt.

A trial's kinds range from code edits, mostly predictable by prompt lookup, to free prose, mostly
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import count, cycle
from pathlib import Path
from typing import Final, Protocol

TEXTS: Final = Path(__file__).resolve().parent / "texts"
SEPARATOR: Final = "\n\n---\n\n"
FUNCTION_SEPARATOR: Final = "\n\n\n"
_TASK_LINES: Final = 2
"""Lines — beginning of a function, which the answer continues."""


@cache
def read_sections(name: str, separator: str = SEPARATOR) -> tuple[str, ...]:
    """Return the sections of the file `name`, below `TEXTS` unless absolute."""
    return tuple((TEXTS / name).read_text(encoding="utf-8").strip().split(separator))


class Kind(StrEnum):
    """Kind of text. `CONVERSATION`: the model's last conversation; `PICTURE`: questions on an
    image.

    The user's conversation and image are held in memory only.
    """

    CODE = "code"
    EDIT = "edit"
    DATA = "data"
    PROSE = "prose"
    CONVERSATION = "conversation"
    PICTURE = "picture"


WRITTEN: Final = (Kind.CODE, Kind.EDIT, Kind.DATA, Kind.PROSE)
"""Kinds with texts shipped in omlx."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt. `greedy`: temperature 0 instead of the model's setting.

    `ends`: stop tokens end the answer. Free prose ignores them: a small model would stop too early
    to be measured.
    """

    text: str
    greedy: bool
    ends: bool


def question(kind: Kind, number: int) -> Question:
    """Return the question of round `number`, counted from 0. Only for `WRITTEN` kinds."""
    texts = read_sections(f"kinds/{kind}.txt")
    prose = kind is Kind.PROSE
    return Question(texts[number % len(texts)], greedy=not prose, ends=not prose)


class Encode(Protocol):
    async def __call__(self, text: str, *, special: bool) -> list[int]:
        """Tokenize `text`; `special` adds the model's leading tokens."""
        ...


async def prompts_of_length(
    encode: Encode, name: str, tokens: int, streams: int
) -> list[tuple[int, ...]]:
    """Return one prompt per stream, each of exactly `tokens` tokens: functions to continue.

    The prompts share all but their ends; prompts of another `name` have no common prefix. Text is
    code for the answer to repeat, as in an agent's edits. No chat template is applied.
    """
    functions = read_sections("functions.txt", FUNCTION_SEPARATOR)
    body = await encode(f"# {name}{FUNCTION_SEPARATOR}", special=True)
    for number, function in zip(count(1), cycle(functions), strict=False):
        if len(body) >= tokens:
            break
        text = f"# Part {number}\n{function}{FUNCTION_SEPARATOR}"
        body += await encode(text, special=False)
    prompts = []
    for function in functions[:streams]:
        # The end of a prompt repeats the beginning of a function, for the answer to continue.
        head = "\n".join(function.split("\n")[:_TASK_LINES])
        tail = await encode(f"\n# Again\n{head}\n", special=False)
        prompts.append((*body[: tokens - len(tail)], *tail))
    return prompts
