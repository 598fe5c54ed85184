"""`model-package.json`: what a model's directory declares about speculation.

    {"generation": {"speculative_decoding": {
        "default": "small",
        "strategies": {
          "small": {"type": "draft-model", "draft_model": "org/name[:quant][@revision]",
                    "window_policy": {"default": "adaptive", "initial_window": 16, "min_window": 2, "max_window": 16}},
          "lookup": {"type": "ngram", "shortest_match": 3}}}}}

Only the default counts. Keys that are not known are passed over with a warning, and so are
strategies of unknown types unless one of them is the default. Everything else that is wrong is an
error which names its place in the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from omlx.draft_length import MAX_DRAFT_LENGTH, SETTINGS, DraftLength
from omlx.engine.strategy import BOUNDS
from omlx.engine.types import Reason
from omlx.errors import ModelError
from omlx.models.catalog.model_config import read_config
from omlx.models.catalog.reference import Reference
from omlx.models.package.fields import Fields
from omlx.settings.layer import Layer, Source
from omlx.settings.schema import Value

FILE: Final = "model-package.json"
ADAPTIVE, FIXED = "adaptive", "fixed"
_FIRST, _LAST = 4, 16
_FIELDS = {name: field for field, name in SETTINGS.items()}
_NUMBER = re.compile(r"\d{1,9}")


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """How many tokens to draft: `initial` at first, then between the bounds; always `initial`, or
    none, if `kind` is fixed.
    """

    kind: str
    length: DraftLength

    @property
    def values(self) -> dict[str, Value]:
        """The same as settings. Not `num_draft_tokens`, which is obeyed at any cost: what a
        stranger declares is used where it pays.
        """
        initial, length = self.length.initial, self.length
        if self.kind == FIXED:
            length = DraftLength(initial, initial, initial)
        return dict(length.values)

    @property
    def record(self) -> dict[str, Any]:
        """The same as the file holds it."""
        bounds = {
            "initial_window": self.length.initial,
            "min_window": self.length.min,
            "max_window": self.length.max,
        }
        return {"default": self.kind, **bounds}

    def __str__(self) -> str:
        """How `--window` says it."""
        if self.kind == FIXED:
            return f"{FIXED}:{self.length.initial}"
        return f"{self.kind}:{self.length.initial},{self.length.min},{self.length.max}"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """`size_bytes` is what the weights took where the package was written."""

    draft: Reference
    window: WindowPolicy | None
    size_bytes: int | None

    @property
    def values(self) -> dict[str, Value]:
        return {"draft_model": str(self.draft), **(self.window.values if self.window else {})}


@dataclass(frozen=True, slots=True)
class Ngram:
    window: WindowPolicy | None
    shortest_match: int | None

    @property
    def values(self) -> dict[str, Value]:
        match = "" if self.shortest_match is None else f":n={self.shortest_match}"
        return {"speculation": f"ngram{match}", **(self.window.values if self.window else {})}


Declared: TypeAlias = DraftModel | Ngram


@dataclass(frozen=True, slots=True)
class Package:
    """What a package declares. `reason` says why its default cannot be used; `warnings` what was
    passed over.
    """

    default: str | None = None
    declared: Declared | None = None
    reason: Reason | None = None
    warnings: tuple[Reason, ...] = ()

    @property
    def layer(self) -> Layer:
        return Layer(Source.PACKAGE, self.declared.values if self.declared is not None else {})


def read_package(directory: Path) -> Package:
    """The package of a model; an empty one if it has none, or none that speaks of speculation.
    Raises ModelError.
    """
    generation = Fields(read_config(directory, FILE)).object("generation")
    block = generation.object("speculative_decoding") if generation is not None else None
    if block is None or not block:
        return Package()
    block.pass_over_except("default", "strategies")
    strategies = block.required("strategies").object("strategies")
    assert strategies is not None
    default = block.text("default")
    if default is not None and default not in strategies:
        expected = ", ".join(strategies) or "nothing"
        raise ModelError(
            "package.unknown_default", at=block.at("default"), name=default, expected=expected
        )
    package = Package()
    for name in strategies:
        fields = strategies.required(name).object(name)
        assert fields is not None
        declared = _declared(fields)
        if name == default:
            package = Package(default, declared if not isinstance(declared, Reason) else None)
            if isinstance(declared, Reason):
                package = Package(default, reason=declared)
        elif isinstance(declared, Reason):
            block.warnings.append(declared)
    return Package(package.default, package.declared, package.reason, tuple(block.warnings))


def usable_package(directory: Path) -> Package:
    """The package of a model. One that is wrong is an empty one with the reason: it never stops a
    start.
    """
    try:
        return read_package(directory)
    except ModelError as error:
        return Package(reason=Reason(error.code, error.params))


def _declared(fields: Fields) -> Declared | Reason:
    match fields.required("type").text("type"):
        case "draft-model":
            fields.pass_over_except("type", "draft_model", "window_policy", "size_bytes")
            named = fields.required("draft_model").text("draft_model") or ""
            try:
                draft = Reference.parse(named)
            except ModelError:
                raise ModelError(
                    "package.draft", at=fields.at("draft_model"), value=named
                ) from None
            return DraftModel(draft, read_window(fields), fields.number("size_bytes", 0, 1 << 62))
        case "ngram":
            fields.pass_over_except("type", "window_policy", "shortest_match")
            return Ngram(read_window(fields), fields.number("shortest_match", *BOUNDS["n"]))
        case other:
            return Reason("package.unknown_type", {"at": fields.at("type"), "type": other})


def read_window(fields: Fields, key: str = "window_policy") -> WindowPolicy | None:
    """The window policy in `fields`, if there is one. Raises ModelError."""
    policy = fields.object(key)
    if policy is None:
        return None
    policy.pass_over_except("default", "initial_window", "min_window", "max_window")
    kind = policy.text("default") or ADAPTIVE
    if kind not in (ADAPTIVE, FIXED):
        raise ModelError(
            "package.choice", at=policy.at("default"), value=kind, choices=f"{ADAPTIVE}, {FIXED}"
        )
    low, initial, high = (
        policy.number(f"{name}_window", 1, MAX_DRAFT_LENGTH) for name in ("min", "initial", "max")
    )
    if kind == FIXED and initial is None:
        policy.required("max_window")
        initial = high
    return window_policy(kind, DraftLength(low or 0, initial or 0, high or 0), policy.at())


def window_policy(kind: str, given: DraftLength, at: str) -> WindowPolicy:
    """Close the bounds that are open. Raises ModelError where min <= initial <= max does not hold."""
    low = given.min or 1
    high = given.max or max(low, _LAST, given.initial)
    initial = given.initial or min(max(_FIRST, low), high)
    length = DraftLength(low, initial, high)
    # The outer bounds are compared first: an error names the one that is too large, not the initial length.
    contradiction = DraftLength(low, max=high).contradiction or length.contradiction
    if contradiction is not None:
        raise ModelError(
            "package.window",
            at=at,
            smaller=f"{_FIELDS[contradiction.low]}_window",
            low=contradiction.smaller,
            larger=f"{_FIELDS[contradiction.high]}_window",
            high=contradiction.larger,
        )
    return WindowPolicy(kind, length)


def window_from(text: str) -> WindowPolicy:
    """`adaptive:INITIAL,MIN,MAX` or `fixed:N`, as on the command line. Raises ModelError."""
    kind, _, numbers = text.partition(":")
    parts = numbers.split(",") if numbers else []
    wanted = {ADAPTIVE: 3, FIXED: 1}.get(kind)
    if (
        wanted is None
        or len(parts) != wanted
        or not all(_NUMBER.fullmatch(part.strip()) for part in parts)
    ):
        raise ModelError("package.window_text", value=text)
    values = [int(part) for part in parts]
    if not all(1 <= value <= MAX_DRAFT_LENGTH for value in values):
        raise ModelError("package.window_range", value=text, low=1, high=MAX_DRAFT_LENGTH)
    initial, low, high = values if kind == ADAPTIVE else values * 3
    return window_policy(kind, DraftLength(low, initial, high), text)


def strategy_record(declared: Declared) -> dict[str, Any]:
    """What the file holds for a strategy."""
    record: dict[str, Any]
    match declared:
        case DraftModel(draft, _, size_bytes):
            record = {"type": "draft-model", "draft_model": str(draft), "size_bytes": size_bytes}
        case Ngram(_, shortest_match):
            record = {"type": "ngram", "shortest_match": shortest_match}
    if declared.window is not None:
        record["window_policy"] = declared.window.record
    return {key: value for key, value in record.items() if value is not None}
