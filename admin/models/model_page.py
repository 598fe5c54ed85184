"""Page of a model: speculation, trial, prefix cache and all other settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from fastapi import Request

from omlx.clients.apps import client_name
from omlx.errors import Reason
from omlx.exactness import ExactnessClaim
from omlx.measure.results import StoredResult
from omlx.models.pool.speculation import SpeculationConfig
from omlx.records import BeginningStats, PrefixStats
from omlx.server.http.transport import Json
from omlx.server.services import Forecast, PrefixService
from omlx.settings.schema import STRICT, Group, Settings

from ..settings.page import ProfileRow, SettingsService
from ..settings.view import SettingView
from ..trial import Trials
from ..trial_view import OutcomeView, TrialCard, outcome_view, trial_card
from ..web.addresses import MODELS, PARTS
from ..web.pages import Pages, page
from ..web.preferences import language_of
from .draft_picker import DraftCandidate, DraftPicker
from .drafts import ModelDrafts
from .list_page import SECTION, ModelRow, is_another_models, model_row
from .model_snapshot import ModelSnapshot, ModelSnapshots

MAX_CHARACTERS: Final = 80
STRATEGY: Final = "speculation"
DRAFT: Final = "draft_model"
DRAFT_LENGTH: Final = ("draft_initial", "draft_min", "draft_max", "num_draft_tokens")

SETTINGS: Final = frozenset((STRATEGY, DRAFT, *DRAFT_LENGTH))
"""Settings with a control on the card."""

OFF: Final = "off"

STRATEGIES: Final = ("auto", "ngram", "draft", "ngram;draft")
"""Strategies with a label; others are shown as written."""

_ON_PICKER: Final = ("draft.", "spec.off.no_draft_model")
"""Prefixes of reasons shown by the draft picker."""


@dataclass(frozen=True, slots=True)
class PrefixCard:
    """The prefix cache; `stats` is None for a model not in memory.

    `share` of recent requests' prompt tokens came from the cache; None without requests.
    `prewarming` is None if beginnings of prompts are not stored.
    """

    model: str
    stats: PrefixStats | None = None
    share: float | None = None
    beginnings: Sequence[BeginningRow] = ()
    prewarming: BeginningStats | None = None


@dataclass(frozen=True, slots=True)
class ExactnessCard:
    """A loaded model's measured exactness, and the promise for its answers."""

    model: str
    claim: ExactnessClaim


@dataclass(frozen=True, slots=True)
class ModelView:
    """Cards are None for an unusable model; `reason` says why.

    `notes`: what a loaded model lacks, such as tokens of its tokenizer.
    """

    model: ModelRow
    revision: str = ""
    advanced: Mapping[Group, Sequence[SettingView]] = field(default_factory=dict)
    speculation: SpeculationCard | None = None
    trial: TrialCard | None = None
    prefixes: PrefixCard | None = None
    reason: Reason | None = None
    notes: Sequence[Reason] = ()
    profiles: Sequence[ProfileRow] = ()
    benchmark: BenchmarkCard | None = None
    exactness: ExactnessCard | None = None

    @property
    def path(self) -> str:
        """Path of the model's settings below the API."""
        return f"/models/{self.model.id}/settings"


@dataclass(frozen=True, slots=True)
class DraftsView:
    """Drafts of the model `model` (id)."""

    model: str
    drafts: DraftPicker


@dataclass(frozen=True, slots=True)
class ModelPage:
    snapshots: ModelSnapshots
    settings: SettingsService
    trials: Trials
    prefixes: PrefixService
    drafts: ModelDrafts

    def register(self, pages: Pages) -> None:
        pages.route(f"{MODELS}/{{name:path}}", page("models/model_page.html", self._view, SECTION))
        for part, template, view in (
            ("model", "models/status.html", self._status),
            ("prefixes", "models/prefixes_status.html", self._prefixes),
            ("exactness", "models/exactness_status.html", self._exactness),
            ("drafts", "models/draft_choices.html", self._drafts),
            ("unfit", "models/unfit.html", self._unfit),
            ("trial-drafts", "trial/drafts_part.html", self._trial_drafts),
            ("trial", "trial/outcome.html", self._trial),
        ):
            pages.part(f"{PARTS}/{part}/{{name:path}}", page(template, view))

    async def _status(self, request: Request) -> ModelView:
        model = await self._snapshot(request)
        return ModelView(model_row(model, self.snapshots.default), notes=_notes(model))

    async def _prefixes(self, request: Request) -> PrefixCard:
        return await self._prefix_card(await self._snapshot(request))

    async def _exactness(self, request: Request) -> ExactnessCard:
        return exactness_card(await self._snapshot(request))

    async def _drafts(self, request: Request) -> DraftsView:
        model, _, drafts = await self._asked_drafts(request)
        return DraftsView(model.entry.id, drafts)

    async def _unfit(self, request: Request) -> Sequence[DraftCandidate]:
        return (await self._asked_drafts(request))[2].unfit

    async def _trial_drafts(self, request: Request) -> TrialCard:
        return _trial_card(*await self._asked_drafts(request))

    async def _trial(self, request: Request) -> OutcomeView:
        model = self.snapshots.pool.entry(request.path_params["name"]).id
        return outcome_view(await self.trials.status(model, language_of(request)))

    async def _snapshot(self, request: Request) -> ModelSnapshot:
        return await self.snapshots.of(request.path_params["name"])

    async def _asked_drafts(self, request: Request) -> tuple[ModelSnapshot, Json, DraftPicker]:
        """Return the URL's model with trials and drafts."""
        model = await self._snapshot(request)
        status = await self.trials.status(model.entry.id, language_of(request))
        query, results = request.query_params, status["results"]
        every, kept = query.get("drafts") == "all", frozenset(query.getlist("keep"))
        return model, status, await self.drafts.picker(model, results, every=every, kept=kept)

    async def _view(self, request: Request) -> ModelView:
        model, status, drafts = await self._asked_drafts(request)
        row = model_row(model, self.snapshots.default)
        settings = await asyncio.to_thread(self.settings.view, row.id)
        advanced = settings.groups(without=SETTINGS)
        if model.speculative is None:
            return ModelView(row, settings.revision, advanced, reason=model.entry.reason)
        inherited = await asyncio.to_thread(self.settings.inherited, row.id)
        runs = await asyncio.to_thread(self.trials.measurements.store.runs, row.id)
        return ModelView(
            row,
            settings.revision,
            advanced,
            speculation=speculation_card(model.speculative, settings.settings, inherited, drafts),
            trial=_trial_card(model, status, drafts),
            prefixes=await self._prefix_card(model),
            notes=_notes(model),
            profiles=self.settings.profiles(row.id),
            benchmark=benchmark_card(row.id, runs),
            exactness=exactness_card(model),
        )

    async def _prefix_card(self, model: ModelSnapshot) -> PrefixCard:
        card = prefix_card(model)
        if model.served is None:
            return card
        forecasts = await self.prefixes.beginnings(model.entry.id)
        shows_prompts = model.served.speculation.settings.record_prompts
        rows = beginning_rows(forecasts, shows_prompts=shows_prompts)
        return replace(card, beginnings=rows, prewarming=self.prefixes.prewarming(model.entry.id))


def _notes(model: ModelSnapshot) -> Sequence[Reason]:
    served = model.served
    if served is None:
        return ()
    return [reason for reason in (served.narrow, served.kv_cache.reason) if reason is not None]


def exactness_card(model: ModelSnapshot) -> ExactnessCard:
    if model.served is not None:
        return ExactnessCard(model.entry.id, model.served.exactness)
    settings = None if model.speculative is None else model.speculative.settings
    strict = settings is not None and settings.exactness == STRICT
    return ExactnessCard(model.entry.id, ExactnessClaim(strict, None))


def prefix_card(model: ModelSnapshot) -> PrefixCard:
    prompt = sum(request.prompt_n for request in model.recent)
    cached = sum(request.cached_n for request in model.recent)
    return PrefixCard(model.entry.id, model.prefixes, cached / prompt if prompt else None)


def _trial_card(model: ModelSnapshot, status: Json, drafts: DraftPicker) -> TrialCard:
    sizes = {draft.id: draft.size_bytes for draft in drafts.fit}
    likely = [draft.id for draft in drafts.fit if draft.chosen or draft.declared]
    card = trial_card(status, sizes, likely, sees=model.no_vision is None)
    unchecked = frozenset(draft.id for draft in drafts.fit if not draft.checked)
    unfit = {draft.id: draft.reason for draft in drafts.fit if draft.reason is not None}
    return replace(card, unchecked=unchecked, unfit=unfit, more=drafts.more, query=drafts.query)


@dataclass(frozen=True, slots=True)
class BeginningRow:
    """An expected beginning of prompts: `client` empty if unknown, `words` unless recorded."""

    client: str
    words: str
    forecast: Forecast


def beginning_rows(forecasts: Sequence[Forecast], *, shows_prompts: bool) -> list[BeginningRow]:
    return [
        BeginningRow(
            client_name(forecast.expected.known.client),
            first_words(forecast) if shows_prompts else "",
            forecast,
        )
        for forecast in forecasts
    ]


def first_words(forecast: Forecast) -> str:
    """Return the first characters of the first system message; empty for tools alone."""
    messages = forecast.expected.beginning.messages
    text = " ".join(str(messages[0]["content"]).split()) if messages else ""
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class BenchmarkCard:
    """Rates of a single stream in tokens per second, for a prompt of `tokens`.

    `at` in seconds since the epoch; all None before the first benchmark. `decode` is with drafts,
    if any.
    """

    model: str
    tokens: int | None = None
    prefill: float | None = None
    decode: float | None = None
    at: float | None = None


def benchmark_card(model: str, runs: Sequence[StoredResult]) -> BenchmarkCard:
    """Return figures of the newest run's shortest prompt. `runs`: newest first."""
    for run in runs:
        for row in run.record["rows"]:
            decode = row["drafted"] or row["plain"]
            if row["streams"] == 1 and row["prefill"] is not None and decode is not None:
                return BenchmarkCard(model, row["tokens"], row["prefill"], decode["median"], run.at)
    return BenchmarkCard(model)


@dataclass(frozen=True, slots=True)
class InEffect:
    """A value in effect; `name` is a key below `ui.effect.`, `source` set the value."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class SpeculationCard:
    """`strategy`: stored for this model, empty for none; `inherited`: without a stored strategy.

    `inherits_draft`: the model has a draft without a stored setting. `custom`: a strategy outside
    `strategies`; `reason`: why no draft is used.
    """

    on: bool
    strategy: str
    inherited: str
    inherits_draft: bool
    custom: str | None
    strategy_setting: SettingView
    draft_setting: SettingView
    drafts: DraftPicker
    window: Sequence[SettingView]
    in_effect: Sequence[InEffect]
    reason: Reason | None
    warnings: Sequence[Reason]
    strategies: Sequence[str] = STRATEGIES


def speculation_card(
    configured: SpeculationConfig,
    settings: Mapping[str, SettingView],
    inherited: Settings,
    drafts: DraftPicker,
) -> SpeculationCard:
    """Return the card. `settings` are the model's, `inherited` without the model's stored ones."""
    setting, reason = settings[STRATEGY], configured.reason
    shown = setting.effect if setting.locked else setting.text or setting.effect
    on_picker = reason is not None and reason.code.startswith(_ON_PICKER)
    return SpeculationCard(
        on=not configured.strategy.off,
        strategy=setting.effect if setting.locked else setting.text,
        inherited=inherited.speculation,
        inherits_draft=inherited.draft_model is not None,
        custom=None if shown in (*STRATEGIES, OFF) else shown,
        strategy_setting=setting,
        draft_setting=settings[DRAFT],
        drafts=drafts,
        window=[settings[name] for name in DRAFT_LENGTH],
        in_effect=in_effect(configured),
        reason=None if on_picker else reason,
        warnings=configured.warnings,
    )


def in_effect(configured: SpeculationConfig) -> list[InEffect]:
    """Return strategy, draft and draft length of the next request, each with its source."""
    sources, length = configured.sources, configured.draft_length
    draft = configured.settings.draft_model
    lines = [InEffect("strategy", str(configured.strategy), sources[STRATEGY].value)]
    drafts = configured.admits_draft and not is_another_models(configured)
    if draft is not None and drafts:
        lines.append(InEffect("draft", draft, sources[DRAFT].value))
    source = min((sources[name] for name in DRAFT_LENGTH), key=lambda source: source.rank)
    if length.fixed is None:
        lines.append(InEffect("window", f"{length.min}–{length.max}", source.value))
    else:
        lines.append(InEffect("window_fixed", str(length.fixed), source.value))
    return lines
