"""What speculation of one model comes to: settings and package, resolved against the models that are here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from omlx.draft_length import DEFAULT_DRAFT_LENGTH, SETTINGS, DraftLength
from omlx.engine.strategy import AUTO, Strategy, parse
from omlx.engine.types import Reason
from omlx.errors import BadRequest, ConfigError
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.reference import MissingDraft, find_draft
from omlx.models.package.compatibility import checkpoint_mismatch
from omlx.models.package.package import Declared, DraftModel, Package, usable_package
from omlx.settings.configuration import Configuration
from omlx.settings.layer import Source
from omlx.settings.resolve import Resolution
from omlx.settings.schema import Settings, Value, table

FETCHABLE: Final = ("draft.not_here", "draft.unfit.half_download")
"""Why a draft is missing, where fetching it would help."""

_ALIAS = re.compile(r"[A-Za-z0-9_][\w.:@/-]{0,199}")


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """How one model is to be drafted for. `settings` and `sources` are all of its settings and who set each.

    `draft` is the one configured or declared, if it is here and, as far as its files tell, fits; `reason` says why
    there is none, and `wanted` what would have to be fetched.
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
        """The draft to load: none where the strategy does not draft with one."""
        return self.draft if self.strategy.step("draft") is not None else None

    @property
    def drafters(self) -> tuple[str, ...]:
        """Who may draft with the draft that is here, as strategies name them: none where speculation is off."""
        here = ("ngram", "draft") if self.active_draft is not None else ("ngram",)
        return tuple(name for name in here if self.strategy.step(name) is not None)

    @property
    def no_draft_reason(self) -> Reason | None:
        """Why no draft is to be loaded; None if one is."""
        if self.strategy.step("draft") is None:
            return Reason(
                "spec.off.strategy",
                {"strategy": str(self.strategy), "source": self.sources["speculation"]},
            )
        return self.reason

    @property
    def draft_missing(self) -> bool:
        """Whether its draft, whoever named it, is not here as a whole: it may still come."""
        return self.reason is not None and self.reason.code in FETCHABLE


def resolve_speculation(
    entry: ModelEntry, registry: Registry, configuration: Configuration
) -> SpeculationConfig:
    """Read the package and the files of settings anew. Whatever is wrong with a draft or a package is a reason."""
    package = usable_package(entry.path)
    resolution = configuration.resolve(entry.id, package.layer)
    strategy = strategy_of(resolution)
    draft, reason, wanted = _draft(entry, registry, resolution, package)
    return SpeculationConfig(
        strategy=strategy,
        draft_length=draft_length_of(resolution),
        settings=resolution.settings,
        sources=resolution.sources,
        draft=draft,
        reason=reason,
        missing_draft=wanted,
        warnings=(*strategy.notes, *package.warnings),
    )


def check_value(name: str, value: Value, where: str) -> None:
    """What the table of settings cannot judge: strategy strings, names. Raises ConfigError."""
    if (
        name == "alias"
        and isinstance(value, str)
        and (_ALIAS.fullmatch(value) is None or ".." in value)
    ):
        raise ConfigError("config.alias_form", where=where, value=value)
    if name == "speculation" and isinstance(value, str):
        try:
            parse(value, where)
        except BadRequest as error:
            raise ConfigError("config.strategy", where=where, detail=error.message) from error


def strategy_of(resolution: Resolution) -> Strategy:
    """Raises ConfigError if the strategy string is wrong; it names the flag, variable or key."""
    text, source = resolution.settings.speculation, resolution.sources["speculation"]
    row = table()["speculation"]
    check_value(
        row.name,
        text,
        {Source.CLI: row.flag, Source.ENVIRONMENT: row.variable}.get(source, row.path),
    )
    return parse(text)


def draft_length_of(resolution: Resolution) -> DraftLength:
    """Return the bounds of the draft length. Where two sources contradict each other, the one with the higher
    precedence bounds the other."""

    def set_by(source: Source) -> DraftLength:
        resolved = {name: resolution[name] for name in SETTINGS.values()}
        return DraftLength.parse(
            {name: found.value for name, found in resolved.items() if found.source is source}
        )

    return DraftLength.merge(*map(set_by, Source))


def _draft(
    entry: ModelEntry, registry: Registry, resolution: Resolution, package: Package
) -> tuple[ModelEntry | None, Reason | None, MissingDraft | None]:
    settings = resolution.settings
    if settings.no_draft:
        return None, Reason("spec.off.no_draft"), None
    if settings.draft_model is None:
        return None, package.reason or Reason("spec.off.no_draft_model"), None
    found = find_draft(settings.draft_model, registry)
    reason = found if isinstance(found, Reason) else checkpoint_mismatch(entry, found)
    if not isinstance(found, Reason) and reason is None:
        return found, None, None
    assert reason is not None
    declared = package.declared if resolution.sources["draft_model"] is Source.PACKAGE else None
    return None, reason, _wanted(declared, reason)


def _wanted(declared: Declared | None, reason: Reason) -> MissingDraft | None:
    """What would be fetched: a declared draft from the hub, and nothing that somebody merely named."""
    if (
        not isinstance(declared, DraftModel)
        or not declared.draft.on_hub
        or reason.code not in FETCHABLE
    ):
        return None
    return MissingDraft(declared.draft, declared.size_bytes)
