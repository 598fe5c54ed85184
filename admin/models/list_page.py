"""The page of all models, loaded models first, and its API.

The chip beside a model's name sums up the model's state of speculation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import Reason, optional_reason
from omlx.measure.sample import NOTABLE
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.footprint import MemoryParts, weight_bytes
from omlx.models.pool.served import KVCacheFacts, ModelStatus, State
from omlx.models.pool.speculation import SpeculationConfig
from omlx.records import acceptance_rate
from omlx.server.endpoints import status
from omlx.server.http.transport import Json, while_connected
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.services import ExactnessService, PrefixService
from omlx.settings.layers import Source
from omlx.settings.schema import Settings

from ..web.addresses import MODELS, PARTS
from ..web.pages import Pages, page
from ..web.preferences import Strict
from .model_snapshot import TEXT_ALONE, ModelSnapshot, ModelSnapshots

SECTION: Final = "models"
MIB: Final = 1 << 20
"""Bytes — precision of the memory shown: an idle process allocates and frees a few kilobytes."""

FIRST_ROWS: Final = 20
"""Full rows in the page itself, for a fast first view; the refreshed part has all."""

DRAFT: Final = "draft_model"
_ABSENT: Final = ("draft.not_here", "draft.other_quantization")

_INCONCLUSIVE: Final = (
    "spec.off.no_chance",
    "spec.off.requested",
    "spec.off.zero_window",
    "batch.off.uneven",
)
"""Outcomes that do not predict the next request's."""


@dataclass(frozen=True, slots=True)
class Memory:
    limit_bytes: int
    used: MemoryParts


@dataclass(frozen=True, slots=True)
class ModelRow:
    """`context_length`: tokens, the lower of the configured limit and the model's.

    `no_vision`: why the model reads no images, None if it does; `tower_bytes`: memory of its vision
    tower; `needs_bytes`: memory that its weights take; `kv_cache`: that of a loaded model.
    """

    entry: ModelEntry
    status: ModelStatus
    pinned: bool
    is_default: bool
    chip: Chip | None
    parameters: int | None = None
    context_length: int | None = None
    alias: str | None = None
    ttl_s: int | None = None
    no_vision: Reason | None = TEXT_ALONE
    tower_bytes: int = 0
    needs_bytes: int = 0
    kv_cache: KVCacheFacts | None = None

    @property
    def id(self) -> str:
        return self.entry.id


@dataclass(frozen=True, slots=True)
class ModelsView:
    """`models` beyond `rows_in_full` are shown by name only; None shows all in full."""

    memory: Memory
    models: Sequence[ModelRow]
    skipped: Sequence[ModelEntry]
    rows_in_full: int | None = None

    @property
    def sources(self) -> Sequence[str]:
        return list(dict.fromkeys(row.entry.source for row in self.models))


class PrefixProbe(Strict):
    """Body of a probe: a prompt, as a single user message."""

    prompt: Annotated[str, Field(min_length=1)]


class Unloading(Strict):
    """Body of an unload. `if_idle` refuses for a model in use."""

    if_idle: bool = False


@dataclass(frozen=True, slots=True)
class ModelsPage:
    """The list of models, and the API: list, load, unload, exactness, prefix caches."""

    snapshots: ModelSnapshots
    prefixes: PrefixService
    exactness: ExactnessService

    def register(self, pages: Pages, api: APIRouter) -> None:
        pages.route(MODELS, page("models/list_page.html", self._first, SECTION))
        pages.part(f"{PARTS}/models", page("models/list.html", self._view))
        model = "/models/{name:path}"
        api.add_api_route("/models", self.show, methods=["GET"])
        api.add_api_route(f"{model}/load", self.load, methods=["POST"])
        api.add_api_route(f"{model}/unload", self.unload, methods=["POST"])
        api.add_api_route(f"{model}/exactness", self.measure_exactness, methods=["POST"])
        api.add_api_route(f"{model}/prefixes", self.clear_prefixes, methods=["DELETE"])
        api.add_api_route(f"{model}/prefixes/probe", self.probe_prefixes, methods=["POST"])

    async def _first(self, request: Request) -> ModelsView:
        return replace(await self._view(request), rows_in_full=FIRST_ROWS)

    async def _view(self, request: Request) -> ModelsView:
        pool = self.snapshots.pool
        used = MemoryParts(*(nbytes // MIB * MIB for nbytes in astuple(pool.memory_parts)))
        memory = Memory(pool.limit_bytes, used)
        return models_view(await self.snapshots.all(), memory, self.snapshots.default)

    async def show(self, request: Request) -> Response:
        """List every model of the registry, usable or not, and the pool's memory."""
        pool = self.snapshots.pool
        memory = {"limit_bytes": pool.limit_bytes, "used_bytes": pool.used_bytes}
        models = [self._record(entry) for entry in pool.registry.entries]
        return JSONResponse({"memory": memory, "default": pool.default, "models": models})

    async def load(self, request: Request, name: str) -> Response:
        """Load a model; answers once loaded."""
        await request.body()
        await while_connected(request.receive, self.snapshots.pool.load(name))
        return JSONResponse(self._record(self.snapshots.pool.resolve(name)))

    async def unload(self, request: Request, name: str) -> Response:
        """Unload a model or cancel loading; answers once out of memory.

        Active requests end first. Raises Conflict during a trial of the model, and with `if_idle`
        for a model in use.
        """
        unloading = Unloading.parse(await request.body() or b"{}")
        unload = self.snapshots.pool.unload(name, if_idle=unloading.if_idle)
        await while_connected(request.receive, unload)
        return JSONResponse(self._record(self.snapshots.pool.resolve(name)))

    async def measure_exactness(self, request: Request, name: str) -> Response:
        """Compare wide passes with single steps, in between running requests' passes.

        Answers with the result; stops if the client disconnects.
        """
        await request.body()
        measured = await while_connected(request.receive, self.exactness.measure(name))
        return JSONResponse(measured.to_json())

    async def clear_prefixes(self, request: Request, name: str) -> Response:
        """Clear the prefix cache, on disk too."""
        await self.prefixes.clear(name)
        return Response(status_code=204)

    async def probe_prefixes(self, request: Request, name: str) -> Response:
        """Return the cached length of a prompt in tokens, null unless the model is loaded."""
        prompt = PrefixProbe.parse(await request.body()).prompt
        chat = GenerationRequest(messages=[{"role": "user", "content": prompt}])
        return JSONResponse(await self.prefixes.probe(name, chat))

    def _record(self, entry: ModelEntry) -> Json:
        return {
            "id": entry.id,
            "status": entry.status.value,
            "reason": optional_reason(entry.reason),
            "found_in": entry.source,
            "path": str(entry.path),
            "size_bytes": entry.size_bytes,
            "model_type": entry.model_type,
            "quantization": entry.quantization,
            **status.memory(self.snapshots.pool.status(entry.id)),
        }


def models_view(
    snapshots: Sequence[ModelSnapshot], memory: Memory, default: str | None
) -> ModelsView:
    """Return the rows, loaded models first. `default`: id of the default model."""
    rows = [model_row(snapshot, default) for snapshot in snapshots if snapshot.usable]
    rows.sort(key=lambda row: row.status.state is State.UNLOADED)
    skipped = [snapshot.entry for snapshot in snapshots if not snapshot.usable]
    return ModelsView(memory, rows, skipped)


def model_row(model: ModelSnapshot, default: str | None) -> ModelRow:
    settings = Settings() if model.speculative is None else model.speculative.settings
    return ModelRow(
        model.entry,
        replace(model.status, idle_s=None),  # not shown; it would make each view different
        settings.pinned,
        model.entry.id == default,
        model_chip(model),
        model.facts.parameters,
        model.facts.context(settings.max_context),
        settings.alias,
        settings.ttl_seconds,
        model.no_vision,
        model.tower_bytes,
        model.status.weights_bytes or weight_bytes(model.entry, settings.dtype),
        model.kv_cache,
    )


class Tone(StrEnum):
    GOOD = "good"
    WAIT = "wait"
    WATCH = "watch"
    QUIET = "quiet"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Chip:
    """A catalog sentence with parameters and figures; `reason` is the full explanation."""

    tone: Tone
    key: str
    params: Mapping[str, object] = field(default_factory=dict)
    speedup: float | None = None
    acceptance: float | None = None
    reason: Reason | None = None


def model_chip(model: ModelSnapshot) -> Chip | None:
    """Return the chip of a model; None if unusable or still loading.

    In this order: an obstacle, the latest outcome, the configuration.
    """
    if not model.usable or model.status.state is State.LOADING:
        return None
    if model.speculative is None:
        return Chip(Tone.BAD, "ui.chip.broken")
    return _obstacle(model, model.speculative) or _latest(model) or _configured(model.speculative)


def is_another_models(configured: SpeculationConfig) -> bool:
    """Whether the draft is configured for all models and does not fit this model."""
    reason = configured.reason
    is_shared = configured.sources[DRAFT] in (Source.CLI, Source.ENVIRONMENT, Source.GLOBAL)
    return is_shared and reason is not None and reason.code.startswith("draft.unfit.")


def _obstacle(model: ModelSnapshot, configured: SpeculationConfig) -> Chip | None:
    if configured.strategy.off:
        return Chip(Tone.QUIET, "ui.chip.off")
    reason = configured.reason
    if model.served is not None:
        if model.served.off_reason is not None:
            return Chip(Tone.QUIET, "ui.chip.impossible", reason=model.served.off_reason)
        reason = model.served.no_draft_reason
    if reason is None or not reason.code.startswith("draft."):
        return None
    if is_another_models(configured):
        return None
    if configured.missing_draft is not None and configured.missing_draft.fetching:
        return Chip(Tone.WAIT, "ui.chip.fetching", reason=reason)
    if reason.code in _ABSENT:
        return Chip(Tone.WAIT, "ui.chip.absent", reason=reason)
    return Chip(Tone.WAIT, "ui.chip.unfit", reason=reason)


def _latest(model: ModelSnapshot) -> Chip | None:
    latest = next(
        (stats for stats in reversed(model.recent) if stats.speculation.code not in _INCONCLUSIVE),
        None,
    )
    if latest is None:
        return None
    reason = latest.speculation
    match reason.code:
        case "spec.on":
            accepted = sum(stats.accepted for stats in model.recent)
            proposed = sum(stats.proposed for stats in model.recent)
            speedup = status.speedup(model.recent)
            return Chip(
                _tone(speedup),
                "ui.chip.on",
                speedup=speedup,
                acceptance=acceptance_rate(accepted, proposed),
                reason=reason,
            )
        case "spec.off.does_not_pay":
            speedup = float(reason.params["speedup"] or 0)
            return Chip(Tone.QUIET, "ui.chip.does_not_pay", speedup=speedup, reason=reason)
        case "spec.observing" if model.status.draft is None:
            return Chip(Tone.WATCH, "ui.chip.nothing_repeats", reason=reason)
        case "spec.observing":
            return Chip(Tone.WATCH, "ui.chip.watching", reason=reason)
        case _:
            return Chip(Tone.QUIET, "ui.chip.off", reason=reason)


def _tone(speedup: float | None) -> Tone:
    """Return the colour of a speed-up; within `NOTABLE` of 1 there is neither gain nor loss."""
    if speedup is None or speedup >= NOTABLE:
        return Tone.GOOD
    return Tone.WAIT if speedup <= 1 / NOTABLE else Tone.WATCH


def _configured(configured: SpeculationConfig) -> Chip:
    if configured.active_draft is not None:
        return Chip(Tone.WATCH, "ui.chip.with_draft", {"draft": configured.active_draft.name})
    return Chip(Tone.WATCH, "ui.chip.with_ngram")
