"""`model-package.json`: speculation declared by a model's directory.

    {"generation": {"speculative_decoding": {"default": NAME, "strategies": {NAME: STRATEGY}}}}

STRATEGY is `{"type": "draft-model", "draft_model": "org/name[:quant][@revision]"}` or `{"type":
"ngram"}` with optional fields. Only the default counts. Unknown keys, and other strategies of
unknown types, are ignored with a warning; any other mistake is an error that names its place.
Drafts are declared only after working on this machine.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from omlx.draft_length import MAX_DRAFT_LENGTH, SETTINGS, DraftLength
from omlx.engine.speculation.strategy import BOUNDS
from omlx.errors import ModelError, Reason, os_errors
from omlx.models.catalog.files import ModelFiles, once, read_json
from omlx.models.catalog.reference import Reference, draft_mismatch, find_draft
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.settings.layers import Layer, Source
from omlx.settings.schema import Value
from omlx.storage import replace_file


class Fields(dict[str, Any]):
    """One JSON object of a file, at a dotted `path`; nested objects share `warnings`."""

    def __init__(
        self, values: Mapping[str, Any], path: str = "", warnings: list[Reason] | None = None
    ) -> None:
        super().__init__(values)
        self._path = path
        self.warnings: list[Reason] = [] if warnings is None else warnings

    def at(self, key: str = "") -> str:
        return ".".join(part for part in (self._path, key) if part)

    def required(self, key: str) -> Fields:
        """Return `self`. Raises ModelError without the key."""
        if self.get(key) is None:
            raise ModelError("package.missing", at=self.at(key))
        return self

    def object(self, key: str) -> Fields | None:
        value = self._of_type(key, dict, "package.object")
        return None if value is None else Fields(value, self.at(key), self.warnings)

    def text(self, key: str) -> str | None:
        value: str | None = self._of_type(key, str, "package.text")
        return value

    def number(self, key: str, low: int, high: int) -> int | None:
        """Return an integer field, None if missing. Raises ModelError outside `low` to `high`."""
        value: int | None = self._of_type(key, int, "package.number")
        if value is not None and not low <= value <= high:
            raise ModelError("package.range", at=self.at(key), value=value, low=low, high=high)
        return value

    def warn_except(self, *known: str) -> None:
        unknown = [key for key in self if key not in known]
        self.warnings += [Reason("package.unknown_key", {"at": self.at(key)}) for key in unknown]

    def _of_type(self, key: str, kind: type, code: str) -> Any:
        """Return a field, None if missing. Raises ModelError with `code` for another type."""
        value = self.get(key)
        if value is not None and type(value) is not kind:  # true is no number
            raise ModelError(code, at=self.at(key))
        return value


FILE: Final = "model-package.json"
ADAPTIVE, FIXED = "adaptive", "fixed"
_DEFAULT_INITIAL, _DEFAULT_MAX = 4, 16
"""Tokens — default draft lengths of a policy without bounds."""
_FIELDS = {name: field for field, name in SETTINGS.items()}
_NUMBER = re.compile(r"\d{1,9}")


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """Draft length of a strategy: adaptive within bounds, or fixed at `initial`."""

    kind: str
    length: DraftLength

    @property
    def values(self) -> dict[str, Value]:
        """Settings equivalent to the policy.

        A fixed policy sets equal bounds, not `num_draft_tokens`, which drafts at any cost: packages
        speculate only where faster.
        """
        initial, length = self.length.initial, self.length
        if self.kind == FIXED:
            length = DraftLength(initial, initial, initial)
        return dict(length.values)

    def to_json(self) -> dict[str, Any]:
        bounds = {
            "initial_window": self.length.initial,
            "min_window": self.length.min,
            "max_window": self.length.max,
        }
        return {"default": self.kind, **bounds}

    def __str__(self) -> str:
        if self.kind == FIXED:
            return f"{FIXED}:{self.length.initial}"
        return f"{self.kind}:{self.length.initial},{self.length.min},{self.length.max}"


@dataclass(frozen=True, slots=True)
class DeclaredDraftModel:
    """Strategy `draft-model`; `size_bytes` of the draft's weights when the package was written."""

    draft: Reference
    window: WindowPolicy | None
    size_bytes: int | None

    @property
    def values(self) -> dict[str, Value]:
        return {"draft_model": str(self.draft), **(self.window.values if self.window else {})}


@dataclass(frozen=True, slots=True)
class DeclaredNgram:
    """Strategy `ngram`: prompt lookup. `shortest_match` in tokens."""

    window: WindowPolicy | None
    shortest_match: int | None

    @property
    def values(self) -> dict[str, Value]:
        strategy = "ngram"
        if self.shortest_match is not None:
            strategy += f":n={self.shortest_match}"
        return {"speculation": strategy, **(self.window.values if self.window else {})}


DeclaredStrategy: TypeAlias = DeclaredDraftModel | DeclaredNgram


@dataclass(frozen=True, slots=True)
class Package:
    """Declared default strategy, or the `reason` why it cannot be used."""

    default: str | None = None
    declared: DeclaredStrategy | None = None
    reason: Reason | None = None
    warnings: tuple[Reason, ...] = ()

    @property
    def layer(self) -> Layer:
        if self.declared is None:
            return Layer(Source.PACKAGE, {})
        return Layer(Source.PACKAGE, self.declared.values)


def read_package(directory: Path) -> Package:
    """Return the package of a model; empty without a file or a section on speculation.

    Raises ModelError for a malformed file.
    """
    return _package(ModelFiles.at(directory))


@once
def _package(files: ModelFiles) -> Package:
    generation = Fields(files.json(FILE)).object("generation")
    block = generation.object("speculative_decoding") if generation is not None else None
    if block is None or not block:
        return Package()
    block.warn_except("default", "strategies")
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
        strategy = _strategy(fields)
        if isinstance(strategy, Reason):
            if name == default:
                package = Package(default, reason=strategy)
            else:
                block.warnings.append(strategy)
        elif name == default:
            package = Package(default, strategy)
    return replace(package, warnings=tuple(block.warnings))


def usable_package(directory: Path) -> Package:
    """Return the package of a model; if malformed, an empty package with the reason."""
    try:
        return read_package(directory)
    except ModelError as error:
        return Package(reason=error.reason)


def _strategy(fields: Fields) -> DeclaredStrategy | Reason:
    match fields.required("type").text("type"):
        case "draft-model":
            fields.warn_except("type", "draft_model", "window_policy", "size_bytes")
            name = fields.required("draft_model").text("draft_model") or ""
            try:
                draft = Reference.parse(name)
            except ModelError:
                place = fields.at("draft_model")
                raise ModelError("package.draft", at=place, value=name) from None
            return DeclaredDraftModel(
                draft, read_window(fields), fields.number("size_bytes", 0, 1 << 62)
            )
        case "ngram":
            fields.warn_except("type", "window_policy", "shortest_match")
            return DeclaredNgram(read_window(fields), fields.number("shortest_match", *BOUNDS["n"]))
        case other:
            return Reason("package.unknown_type", {"at": fields.at("type"), "type": other})


def read_window(fields: Fields, key: str = "window_policy") -> WindowPolicy | None:
    """Return the window policy in `fields`, None without one. Raises ModelError."""
    policy = fields.object(key)
    if policy is None:
        return None
    policy.warn_except("default", "initial_window", "min_window", "max_window")
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
    """Fill in open bounds with defaults. Raises ModelError unless min <= initial <= max."""
    low = given.min or 1
    high = given.max or max(low, _DEFAULT_MAX, given.initial)
    initial = given.initial or min(max(_DEFAULT_INITIAL, low), high)
    length = DraftLength(low, initial, high)
    # The outer bounds come first, so that an error names those and not the initial length.
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
    """Parse `adaptive:INITIAL,MIN,MAX` or `fixed:N`, as of `--window`. Raises ModelError."""
    kind, _, numbers = text.partition(":")
    parts = numbers.split(",") if numbers else []
    are_numbers = all(_NUMBER.fullmatch(part.strip()) for part in parts)
    if len(parts) != {ADAPTIVE: 3, FIXED: 1}.get(kind) or not are_numbers:
        raise ModelError("package.window_text", value=text)
    values = [int(part) for part in parts]
    if not all(1 <= value <= MAX_DRAFT_LENGTH for value in values):
        raise ModelError("package.window_range", value=text, low=1, high=MAX_DRAFT_LENGTH)
    initial, low, high = values if kind == ADAPTIVE else values * 3
    return window_policy(kind, DraftLength(low, initial, high), text)


def strategy_to_json(strategy: DeclaredStrategy) -> dict[str, Any]:
    record: dict[str, Any]
    match strategy:
        case DeclaredDraftModel(draft, _, size_bytes):
            record = {"type": "draft-model", "draft_model": str(draft), "size_bytes": size_bytes}
        case DeclaredNgram(_, shortest_match):
            record = {"type": "ngram", "shortest_match": shortest_match}
    if strategy.window is not None:
        record["window_policy"] = strategy.window.to_json()
    return {key: value for key, value in record.items() if value is not None}


def declare_draft(
    target: ModelEntry, name: str, window: WindowPolicy | None, registry: Registry
) -> DeclaredDraftModel:
    """Return a strategy that drafts with `name`. Raises ModelError if incompatible."""
    draft = find_draft(name, registry)
    if isinstance(draft, Reason):
        raise ModelError(draft.code, param=None, **draft.params)
    reason = draft_mismatch(target, draft)
    if reason is not None:
        raise ModelError(reason.code, param=None, **reason.params)
    reference = Reference.parse(name if "/" in name else draft.id)
    return DeclaredDraftModel(reference, window, draft.size_bytes)


def check_package(target: ModelEntry, registry: Registry) -> Package:
    """Return a model's package. Raises ModelError if unusable on this machine."""
    package = read_package(target.path)
    if package.reason is not None:
        raise ModelError(package.reason.code, param=None, **package.reason.params)
    if isinstance(package.declared, DeclaredDraftModel):
        declare_draft(target, str(package.declared.draft), package.declared.window, registry)
    return package


def write_package(directory: Path, strategy: DeclaredStrategy, name: str) -> Path:
    """Make `strategy` the model's default, called `name`; return the file.

    The rest of the file is kept. Raises ModelError for a malformed file, or if writing fails.
    """
    content = read_json(directory / FILE)
    read_package(directory)
    section = _object(_object(content, "generation"), "speculative_decoding")
    _object(section, "strategies")[name] = strategy_to_json(strategy)
    section["default"] = name
    path = directory / FILE
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with os_errors(ModelError, "package.unwritable", file=str(path)):
        # replaces a link of the hub's cache, not the blob that it points to
        replace_file(path, text.encode(), mode=0o644)
    return path


def window_from_bench(file: Path) -> WindowPolicy:
    """Return the window policy in `draft_window` of a benchmark's JSON. Raises ModelError."""
    if not os.path.isfile(file):  # False for too long a name, too, where Path.is_file raises
        raise ModelError("package.no_bench", file=str(file))
    window = read_window(Fields(read_json(file)), "draft_window")
    if window is None:
        raise ModelError("package.bench_without_window", file=str(file))
    return window


def _object(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object at `key`, created if missing or null."""
    if values.get(key) is None:
        values[key] = {}
    inner: dict[str, Any] = values[key]
    return inner
