"""What a trial asks: a few kinds of text, in each round another one of its kind, the same on every machine.

From an edit of code, most of which can be foreseen, to free prose, where little can. The files hold a question for
each round, with `---` between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

TEXTS: Final = Path(__file__).resolve().parent / "texts"
SEPARATOR: Final = "\n\n---\n\n"


class Kind(StrEnum):
    CODE = "code"
    EDIT = "edit"
    DATA = "data"
    PROSE = "prose"
    CONVERSATION = "conversation"
    """The last one that the model had, kept in memory alone."""


WRITTEN: Final = (Kind.CODE, Kind.EDIT, Kind.DATA, Kind.PROSE)
"""The kinds whose texts come with omlx."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `greedy`: the likeliest answer is wanted, as for edits; else it is drawn as the settings say.

    `ends`: the answer may end before it is as long as it may be. Free prose goes on: a small model would say goodbye
    too soon to be measured.
    """

    text: str
    greedy: bool
    ends: bool


def question(kind: Kind, number: int) -> Question:
    """The question of a round, counted from 0. `kind` is one of those that are `WRITTEN`."""
    texts = _texts(kind)
    prose = kind is Kind.PROSE
    return Question(texts[number % len(texts)], greedy=not prose, ends=not prose)


@cache
def _texts(kind: Kind) -> tuple[str, ...]:
    return tuple((TEXTS / f"{kind}.txt").read_text(encoding="utf-8").strip().split(SEPARATOR))
