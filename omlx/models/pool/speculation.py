"""Speculation of a model as configured, and the draft to load."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, SETTINGS, DraftLength
from omlx.engine.speculation.strategy import AUTO, MTP, TRAINED, Strategy, parse
from omlx.errors import BadRequest, ConfigError, ModelError, Reason
from omlx.models.catalog.package import DeclaredDraftModel, Package, usable_package
from omlx.models.catalog.reference import (
    MissingDraft,
    checkpoint_mismatch,
    find_draft,
    tokenizer_mismatch,
)
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.settings.configuration import Configuration
from omlx.settings.layers import Resolution, Source
from omlx.settings.schema import Settings, Value, table

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.models.pool.opening import Dtype

FETCHABLE: Final = ("draft.not_here", "draft.unfit.half_download")
"""Reasons of a missing draft that a download would remedy."""

_ALIAS = re.compile(r"[A-Za-z0-9_][\w.:@/-]{0,199}")


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Configured speculation of one model, with all `settings` and the source of each.

    `draft` is the configured or declared draft if on disk and compatible by files; otherwise
    `reason` says why not, and `missing_draft` names the draft to fetch.
    """

    strategy: Strategy = AUTO
    draft_length: DraftLength = DEFAULT_DRAFT_LENGTH
    settings: Settings = field(default_factory=Settings)
    sources: Mapping[str, Source] = field(
        default_factory=lambda: dict.fromkeys(table(), Source.BUILT_IN)
    )
    draft: ModelEntry | None = None
    reason: Reason | None = None
    missing_draft: MissingDraft | None = None
    warnings: tuple[Reason, ...] = ()

    @property
    def active_draft(self) -> ModelEntry | None:
        """Draft model or head to load: None if the strategy uses none of its kind."""
        return self.draft_for(self.strategy)

    @property
    def admits_draft(self) -> bool:
        """True if the strategy names a kind of draft for the setting `draft_model`."""
        return any(map(self.strategy.clause, ("draft", *TRAINED)))

    def draft_for(self, strategy: Strategy) -> ModelEntry | None:
        if self.draft is None or strategy.clause(_kind(self.draft)) is None:
            return None
        return self.draft

    @property
    def drafters(self) -> tuple[str, ...]:
        names = ["ngram"]
        if self.active_draft is not None:
            names.append(_kind(self.active_draft))
        return tuple(name for name in names if self.strategy.clause(name) is not None)

    @property
    def no_draft_reason(self) -> Reason | None:
        """Reason for loading no draft; None if a draft is to be loaded."""
        kind = "draft" if self.draft is None else _kind(self.draft)
        if self.strategy.clause(kind) is not None:
            return self.reason
        source = self.sources["speculation"]
        return Reason("spec.off.strategy", {"strategy": str(self.strategy), "source": source})

    @property
    def draft_missing(self) -> bool:
        """True if the draft is not, or not completely, on disk: it may still arrive."""
        return self.reason is not None and self.reason.code in FETCHABLE


def resolve_speculation(
    entry: ModelEntry, registry: Registry, configuration: Configuration
) -> SpeculationConfig:
    """Resolve settings and package of a model. An unusable draft or package becomes a reason.

    Reads the package file.
    """
    package = usable_package(entry.path)
    resolution = configuration.resolve(entry.id, package.layer)
    strategy = strategy_of(resolution)
    draft = _find_draft(entry, registry, resolution, package)
    reason = draft if isinstance(draft, Reason) else None
    if isinstance(draft, ModelEntry):
        strategy = strategy.with_draft_as(_kind(draft))
    return SpeculationConfig(
        strategy=strategy,
        draft_length=draft_length_of(resolution),
        settings=resolution.settings,
        sources=resolution.sources,
        draft=None if isinstance(draft, Reason) else draft,
        reason=reason,
        missing_draft=_missing_draft(package, resolution, reason),
        warnings=(*strategy.notes, *package.warnings),
    )


def check_value(name: str, value: Value, where: str) -> None:
    """Raise ConfigError for a malformed alias or strategy, which the table cannot judge."""
    if not isinstance(value, str):
        return
    if name == "alias" and (_ALIAS.fullmatch(value) is None or ".." in value):
        raise ConfigError("config.alias_form", where=where, value=value)
    if name == "speculation":
        try:
            parse(value, where)
        except BadRequest as error:
            raise ConfigError("config.strategy", where=where, detail=error.message) from error


def strategy_of(resolution: Resolution) -> Strategy:
    """Return the strategy. Raises ConfigError with the flag, variable or key of a malformed one."""
    text, source = resolution.settings.speculation, resolution.sources["speculation"]
    row = table()["speculation"]
    places = {Source.CLI: row.flag, Source.ENVIRONMENT: row.variable}
    check_value(row.name, text, places.get(source, row.path))
    return parse(text)


def draft_length_of(resolution: Resolution) -> DraftLength:
    """Return the bounds of the draft length.

    Where two sources contradict each other, the one with precedence bounds the other.
    """

    def set_by(source: Source) -> DraftLength:
        resolved = {name: resolution[name] for name in SETTINGS.values()}
        return DraftLength.parse(
            {name: setting.value for name, setting in resolved.items() if setting.source is source}
        )

    return DraftLength.merge(*map(set_by, Source))


def _kind(draft: ModelEntry) -> str:
    return draft.drafter or "draft"


def _find_draft(
    entry: ModelEntry, registry: Registry, resolution: Resolution, package: Package
) -> ModelEntry | Reason:
    settings = resolution.settings
    if settings.no_draft:
        return Reason("spec.off.no_draft")
    if settings.draft_model is None:
        return package.reason or Reason("spec.off.no_draft_model")
    draft = find_draft(settings.draft_model, registry)
    if isinstance(draft, Reason):
        return draft
    return checkpoint_mismatch(entry, draft) or draft


def _missing_draft(
    package: Package, resolution: Resolution, reason: Reason | None
) -> MissingDraft | None:
    """Return the draft to fetch: declared by a package, never named by settings."""
    declared, source = package.declared, resolution.sources["draft_model"]
    if reason is None or reason.code not in FETCHABLE or source is not Source.PACKAGE:
        return None
    if not isinstance(declared, DeclaredDraftModel) or not declared.draft.on_hub:
        return None
    return MissingDraft(declared.draft, declared.size_bytes)


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """Target to load and its draft (model or head), or the reason for none.

    `requested`: a request named the draft, hence failures are errors. `tokenizers` were read for
    comparison, by model directory.
    """

    target: ModelEntry
    speculation: SpeculationConfig
    draft: ModelEntry | None = None
    reason: Reason | None = None
    requested: bool = False
    tokenizers: Mapping[Path, TokenizerWrapper] = field(default_factory=dict)

    @property
    def head(self) -> ModelEntry | None:
        return None if self.draft is None or self.draft.drafter is None else self.draft

    @property
    def head_kind(self) -> str:
        """Kind of the trained drafter: chosen, else the model's own head."""
        return MTP if self.draft is None else self.draft.drafter or MTP

    @property
    def draft_model(self) -> ModelEntry | None:
        return self.draft if self.head is None else None

    def without_draft(self, detail: str) -> DraftChoice:
        return replace(self, draft=None, reason=Reason("spec.off.draft_failed", {"detail": detail}))


def find_requested_draft(name: str, registry: Registry) -> ModelEntry:
    """Return the draft that a request names, usable or not: `choose_draft` judges it.

    Raises BadRequest.
    """
    draft = find_draft(name, registry)
    if isinstance(draft, Reason):
        code = "draft.not_found" if draft.code == "draft.not_here" else draft.code
        raise BadRequest(code, param="draft_model", **draft.params)
    return draft


def choose_draft(
    target: ModelEntry,
    speculation: SpeculationConfig,
    requested: ModelEntry | None,
    tokenizer_of: Callable[[ModelEntry, Dtype], TokenizerWrapper],
) -> DraftChoice:
    """Return the draft to load: as requested, else as configured if compatible.

    `tokenizer_of` returns the tokenizer of a model, loaded or not. Raises BadRequest and ModelError
    for a requested draft only.
    """
    draft = requested or speculation.active_draft
    if draft is None:
        return DraftChoice(target, speculation, reason=speculation.no_draft_reason)
    choice = DraftChoice(target, speculation, draft, requested=requested is not None)
    try:
        reason = checkpoint_mismatch(target, draft)
        if reason is None and draft.drafter is None:  # trained ones have no tokenizer
            dtype = speculation.settings.dtype
            ours, theirs = (tokenizer_of(entry, dtype) for entry in (target, draft))
            choice = replace(choice, tokenizers={target.path: ours, draft.path: theirs})
            reason = tokenizer_mismatch(ours, theirs)
    except ModelError as error:
        if requested is not None:
            raise ModelError(error.code, param="draft_model", **error.params) from error
        return choice.without_draft(error.message)
    if reason is None:
        return choice
    if requested is not None:
        raise BadRequest(reason.code, param="draft_model", **reason.params)
    return replace(choice, draft=None, reason=reason)
