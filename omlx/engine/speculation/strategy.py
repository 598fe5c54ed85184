"""Strategy strings: which drafters may propose, within which bounds.

    strategy = clause { ";" clause }      ngram:n=4,m=32;draft:m=8
    clause   = name [ ":" key "=" number { "," key "=" number } ]
    name     = off | auto | draft | mtp | eagle | block | ngram
    key      = n (shortest match) | m (longest draft) | min (shortest draft)

Other servers' names are read as these; `Strategy.notes` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from omlx.draft_length import ANY_DRAFT_LENGTH, MAX_DRAFT_LENGTH, DraftLength
from omlx.errors import BadRequest, Reason

MTP: Final = "mtp"
"""The kind of heads beside the weights of a model."""

TRAINED: Final = (MTP, "eagle", "block")
"""Kinds of drafters trained for one target, whose hidden states they read."""

NAMES: Final = ("off", "auto", "draft", *TRAINED, "ngram")
ALIASES: Final = {
    **dict.fromkeys(("ngram-simple", "ngram-cache", "draftless"), "ngram"),
    **dict.fromkeys(("eagle3", "eagle-3"), "eagle"),
    **dict.fromkeys(("dflash", "dflash2", "dspark"), "block"),
}
REFUSED: Final = ("medusa",)
BOUNDS: Final = {"n": (3, 64), "m": (1, MAX_DRAFT_LENGTH), "min": (1, MAX_DRAFT_LENGTH)}
"""Inclusive, in tokens."""

LENGTHS: Final = ("m", "min")
KEYS: Final = {
    "off": (),
    **dict.fromkeys(("auto", "ngram"), BOUNDS),
    **dict.fromkeys(("draft", *TRAINED), LENGTHS),
}
MAX_DIGITS: Final = 9
"""Longer numbers are out of range; they are not converted."""


@dataclass(frozen=True, slots=True)
class Clause:
    """A drafter and its bounds. `shortest_match` is in tokens; None: not set."""

    name: str
    shortest_match: int | None = None
    draft_length: DraftLength = ANY_DRAFT_LENGTH


@dataclass(frozen=True, slots=True)
class Strategy:
    """Drafters in the order given. `notes` say which names were read as others."""

    clauses: tuple[Clause, ...]
    notes: tuple[Reason, ...] = ()

    @property
    def off(self) -> bool:
        return self.clauses[0].name == "off"

    def clause(self, name: str) -> Clause | None:
        """Return the clause that admits a kind of drafter; `auto` admits all."""
        return next((clause for clause in self.clauses if clause.name in (name, "auto")), None)

    def with_draft_as(self, kind: str) -> Strategy:
        """Return the strategy with `draft` read as the kind of the draft that is set.

        A strategy with a clause for that kind stays as written.
        """
        if kind == "draft" or self.clause("draft") is None or self.clause(kind) is not None:
            return self
        clauses = [replace(c, name=kind) if c.name == "draft" else c for c in self.clauses]
        note = Reason("strategy.read_as", {"name": "draft", "meant": kind})
        return Strategy(tuple(clauses), (*self.notes, note))

    def among(self, kinds: set[str]) -> Strategy:
        """Return the strategy without clauses for other kinds of drafters; off if none is left."""
        if not kinds:
            return Strategy((Clause("off"),), self.notes)
        names = {"auto", *kinds}
        left = tuple(clause for clause in self.clauses if clause.name in names)
        return Strategy(left or (Clause("off"),), self.notes)

    def __str__(self) -> str:
        return ";".join(_format(clause) for clause in self.clauses)


AUTO: Final = Strategy((Clause("auto"),))
OFF: Final = Strategy((Clause("off"),))
DRAFT: Final = Strategy((Clause("draft"),))
NGRAM: Final = Strategy((Clause("ngram"),))


def only(kind: str) -> Strategy:
    """Return the strategy that admits one kind of drafter."""
    return Strategy((Clause(kind),))


def parse(text: str, param: str = "speculation") -> Strategy:
    """Parse a strategy. Raises BadRequest with the column (from 1) and what was expected there."""
    refuse = partial(BadRequest, param=param)
    clauses: list[Clause] = []
    notes: list[Reason] = []
    for start, part in _split(text, ";", 1):
        (column, name), *options = _split(part, ":", start, limit=1)
        if name in ALIASES:
            notes.append(Reason("strategy.read_as", {"name": name, "meant": ALIASES[name]}))
            name = ALIASES[name]
        if name in REFUSED:
            raise refuse("strategy.refused", name=name, column=column)
        if name not in NAMES:
            raise refuse("strategy.name", name=name, column=column, expected=", ".join(NAMES))
        if any(clause.name == name for clause in clauses):
            raise refuse("strategy.twice", name=name, column=column)
        if clauses and {name, clauses[0].name} & {"off", "auto"}:
            alone = name if name in ("off", "auto") else clauses[0].name
            raise refuse("strategy.alone", name=alone, column=column)
        values = _parse_options(*options[0], name, refuse) if options else {}
        length = DraftLength(values.get("min", 0), max=values.get("m", 0))
        clauses.append(Clause(name, values.get("n"), length))
    return Strategy(tuple(clauses), tuple(notes))


def _split(text: str, separator: str, column: int, limit: int = -1) -> Iterator[tuple[int, str]]:
    """The stripped parts between separators, each with the column where it begins."""
    for part in text.split(separator, limit):
        yield column + len(part) - len(part.lstrip()), part.strip()
        column += len(part) + 1


def _parse_options(
    start: int, text: str, name: str, refuse: Callable[..., BadRequest]
) -> dict[str, int]:
    keys = KEYS[name]
    values: dict[str, int] = {}
    for column, part in _split(text, ",", start):
        key, equals, number = (field.strip() for field in part.partition("="))
        if key not in keys:
            expected = ", ".join(keys) or "nothing"
            raise refuse("strategy.key", key=key, name=name, column=column, expected=expected)
        if not equals or not number.isdecimal():
            raise refuse("strategy.number", key=key, value=number, column=column)
        low, high = BOUNDS[key]
        if len(number) > MAX_DIGITS or not low <= int(number) <= high:
            raise refuse("strategy.range", key=key, value=number, low=low, high=high, column=column)
        if key in values:
            raise refuse("strategy.twice", name=key, column=column)
        values[key] = int(number)
        shortest, longest = values.get("min", 1), values.get("m", MAX_DRAFT_LENGTH)
        if shortest > longest:
            raise refuse("strategy.min_above_max", low=shortest, high=longest, column=column)
    return values


def _format(clause: Clause) -> str:
    length = clause.draft_length
    pairs = (("n", clause.shortest_match), ("m", length.max), ("min", length.min))
    options = ",".join(f"{key}={value}" for key, value in pairs if value)
    return f"{clause.name}:{options}" if options else clause.name
