"""Strategy strings: who drafts, in which bounds.

    strategy = step { ";" step }          ngram:n=4,m=32;draft:m=8
    step     = name [ ":" key "=" number { "," key "=" number } ]
    name     = off | auto | draft | ngram
    key      = n (shortest match) | m (longest draft) | min (shortest draft)

llama.cpp's names for drafting from history are read as ngram, and the strategy says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.errors import BadRequest, Reason

NAMES: Final = ("off", "auto", "draft", "ngram")
ALIASES: Final = {"ngram-simple": "ngram", "ngram-cache": "ngram", "draftless": "ngram"}
REFUSED: Final = ("eagle3", "eagle", "mtp", "dflash", "medusa")
BOUNDS: Final = {"n": (3, 64), "m": (1, MAX_DRAFT_LENGTH), "min": (1, MAX_DRAFT_LENGTH)}
"""Inclusive, in tokens."""

NGRAM_ONLY: Final = ("n",)
DIGITS: Final = 9
"""Longer numbers are out of range, whatever they are."""


@dataclass(frozen=True, slots=True)
class Step:
    """One drafter and its bounds; None where the user set none."""

    name: str
    shortest_match: int | None = None
    longest_draft: int | None = None
    shortest_draft: int | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """Drafters in the order given. `notes` say what was read as something else."""

    steps: tuple[Step, ...]
    notes: tuple[Reason, ...] = ()

    @property
    def off(self) -> bool:
        return self.steps[0].name == "off"

    def step(self, name: str) -> Step | None:
        """The step that admits a drafter; `auto` admits all."""
        return next((s for s in self.steps if s.name in (name, "auto")), None)

    def among(self, kinds: set[str]) -> Strategy:
        """What is left of it where only these kinds of drafters are: the steps that one of them can take, or off."""
        left = tuple(s for s in self.steps if s.name in kinds or (s.name == "auto" and kinds))
        return Strategy(left or (Step("off"),), self.notes)

    def __str__(self) -> str:
        return ";".join(_format(step) for step in self.steps)


AUTO: Final = Strategy((Step("auto"),))
OFF: Final = Strategy((Step("off"),))
DRAFT: Final = Strategy((Step("draft"),))
NGRAM: Final = Strategy((Step("ngram"),))


def parse(text: str, param: str = "speculation") -> Strategy:
    """Read a strategy string. Raises BadRequest naming the place (1-based column) and what was expected there."""
    steps: list[Step] = []
    notes: list[Reason] = []
    for at, part in _pieces(text, ";", 1):
        (column, name), *options = _pieces(part, ":", at, most=1)
        if name in ALIASES:
            notes.append(Reason("strategy.read_as", {"name": name, "meant": ALIASES[name]}))
            name = ALIASES[name]
        if name in REFUSED:
            raise BadRequest("strategy.refused", param=param, name=name, column=column)
        if name not in NAMES:
            raise BadRequest(
                "strategy.name", param=param, name=name, column=column, expected=", ".join(NAMES)
            )
        if any(step.name == name for step in steps):
            raise BadRequest("strategy.twice", param=param, name=name, column=column)
        if steps and {name, steps[0].name} & {"off", "auto"}:
            alone = name if name in ("off", "auto") else steps[0].name
            raise BadRequest("strategy.alone", param=param, name=alone, column=column)
        values = _options(*options[0], name, param) if options else {}
        steps.append(Step(name, values.get("n"), values.get("m"), values.get("min")))
    return Strategy(tuple(steps), tuple(notes))


def _pieces(text: str, separator: str, column: int, most: int = -1) -> Iterator[tuple[int, str]]:
    """The parts between separators, without the space around them, and the columns where they begin."""
    for piece in text.split(separator, most):
        yield column + len(piece) - len(piece.lstrip()), piece.strip()
        column += len(piece) + 1


def _options(at: int, text: str, name: str, param: str) -> dict[str, int]:
    values: dict[str, int] = {}
    for column, part in _pieces(text, ",", at):
        key, equals, number = (piece.strip() for piece in part.partition("="))
        if key not in BOUNDS or name == "off" or (key in NGRAM_ONLY and name == "draft"):
            keys = ", ".join(
                k for k in BOUNDS if name != "off" and (name != "draft" or k not in NGRAM_ONLY)
            )
            raise BadRequest(
                "strategy.key",
                param=param,
                key=key,
                name=name,
                column=column,
                expected=keys or "nothing",
            )
        if not equals or not number.isdecimal():
            raise BadRequest("strategy.number", param=param, key=key, value=number, column=column)
        low, high = BOUNDS[key]
        if len(number) > DIGITS or not low <= int(number) <= high:
            raise BadRequest(
                "strategy.range",
                param=param,
                key=key,
                value=number,
                low=low,
                high=high,
                column=column,
            )
        if key in values:
            raise BadRequest("strategy.twice", param=param, name=key, column=column)
        values[key] = int(number)
        if values.get("min", 1) > values.get("m", MAX_DRAFT_LENGTH):
            raise BadRequest(
                "strategy.min_above_max",
                param=param,
                low=values["min"],
                high=values["m"],
                column=column,
            )
    return values


def _format(step: Step) -> str:
    pairs = (("n", step.shortest_match), ("m", step.longest_draft), ("min", step.shortest_draft))
    options = ",".join(f"{key}={value}" for key, value in pairs if value is not None)
    return f"{step.name}:{options}" if options else step.name
