"""Services that API endpoints and dashboard share, built once by the composition root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from omlx.engine.device_errors import DEVICE
from omlx.engine.stage.stages import Stages
from omlx.engine.thread import EngineThread
from omlx.engine.types import PromptForecast
from omlx.errors import BadRequest, EngineDead
from omlx.exactness import Exactness
from omlx.models.hub.downloads import Downloads
from omlx.models.pool.footprint import mlx_bytes
from omlx.models.pool.pool import Pool
from omlx.receipts.kept import AnswerStore
from omlx.receipts.verifier import Verifier
from omlx.records import BeginningStats
from omlx.server.beginnings.foresight import Expected
from omlx.server.beginnings.next_turn import NextTurns
from omlx.server.beginnings.prewarmer import BackgroundPrefill, Prewarmer, Tokenized
from omlx.server.beginnings.store import BeginningStore
from omlx.server.http.guard import ApiKeys
from omlx.server.http.transport import Json
from omlx.server.journal.journal import Journal
from omlx.server.request.activity import Activity
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.media.images import UrlReader
from omlx.server.tool_loop import ToolLoops
from omlx.settings.keys import KeyFile
from omlx.settings.schema import Settings
from omlx.telemetry.metrics import Gauges, Metrics
from omlx.telemetry.usage import UsageHistory
from omlx.tools.tool import SearchAddress
from omlx.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of the server that API and dashboard use."""

    engine: EngineThread
    pool: Pool
    metrics: Metrics
    activity: Activity
    generations: GenerationService
    prefixes: PrefixService
    downloads: Downloads
    verifier: Verifier
    api_keys: ApiKeys
    toolbox: Toolbox
    tool_loops: ToolLoops
    journal: Journal | None = None
    prewarmer: Prewarmer | None = None


@dataclass(frozen=True, slots=True)
class Stores:
    """Stores of the services on disk: downloads, answers that have a receipt, the journal of
    answers that outlive the process, the folder `home` of statistics and named API keys, and
    beginnings of prompts. None: off.
    """

    downloads: Downloads
    answers: AnswerStore
    journal: Journal | None = None
    home: Path | None = None
    beginnings: BeginningStore | None = None


def build_services(
    engine: EngineThread,
    pool: Pool,
    stores: Stores,
    api_key: str | None,
    stages: Stages | None = None,
    urls: UrlReader | None = None,
) -> Services:
    """Build the services of one engine thread, which the caller starts and stops.

    `stages` are those of the model that this process leads, if any. `urls` reads images from
    addresses; None: requests must not name any.
    """

    def settings() -> Settings:
        return pool.catalog.configuration.resolve().settings

    prewarmer, prefill = None, BackgroundPrefill(engine, pool)
    if stores.beginnings is not None:
        prewarmer = Prewarmer(prefill, pool, stores.beginnings, settings)
    metrics = Metrics(lambda: _gauges(engine, pool, stages, stores.journal, prewarmer))
    history = UsageHistory(stores.home)
    activity = Activity(metrics, history=history)
    compactions = None if stores.beginnings is None else stores.beginnings.compactions
    next_turns = NextTurns(prefill, pool, settings, compactions)
    generations = GenerationService(
        engine, pool, activity, stores.answers, urls, stores.beginnings, next_turns
    )
    toolbox = _toolbox(settings)
    return Services(
        engine=engine,
        pool=pool,
        metrics=metrics,
        activity=activity,
        generations=generations,
        prefixes=PrefixService(engine, pool, generations, prewarmer),
        downloads=stores.downloads,
        verifier=Verifier(engine, pool, stores.answers),
        api_keys=ApiKeys(api_key, None if stores.home is None else KeyFile(stores.home)),
        toolbox=toolbox,
        tool_loops=ToolLoops(generations, toolbox, settings),
        journal=stores.journal,
        prewarmer=prewarmer,
    )


def _toolbox(settings: Callable[[], Settings]) -> Toolbox:
    def servers() -> dict[str, str]:
        rows = (row.partition("=") for row in settings().mcp_server)
        return {name: address.strip() for name, _, address in rows}

    def web() -> SearchAddress | None:
        url = settings().web_search
        return None if url is None else SearchAddress(url, settings().web_search_key)

    return Toolbox(servers, web)


def _gauges(
    engine: EngineThread,
    pool: Pool,
    stages: Stages | None,
    journal: Journal | None,
    prewarmer: Prewarmer | None,
) -> Gauges:
    loaded = [served.id for served in pool.loaded]
    prefixes = {model: engine.prefix_of(model) for model in loaded}
    return Gauges(
        up=engine.failure is None,
        rows={model: asdict(engine.request_counts(model)) for model in loaded},
        prefixes={model: stats for model, stats in prefixes.items() if stats is not None},
        memory={"used": pool.used_bytes, "limit": pool.limit_bytes, **mlx_bytes()},
        stage_rtts=_round_trips(stages),
        stage_restarts=None if stages is None else stages.statuses[0].restarts,
        answers_on_disk=None if journal is None or journal.off else journal.size,
        answers_returned_to={} if journal is None else journal.counts,
        beginnings={} if prewarmer is None else prewarmer.stats(),
        device_errors={str(kind): count for kind, count in DEVICE.counts.items()},
    )


def _round_trips(stages: Stages | None) -> dict[int, float]:
    """Seconds by rank, of the followers that have answered a beat."""
    if stages is None:
        return {}
    trips = {rank: status.rtt_ms for rank, status in enumerate(stages.statuses)}
    return {rank: ms / 1000 for rank, ms in trips.items() if ms is not None}


_END: Final = object()


@dataclass(frozen=True, slots=True)
class ExactnessService:
    """Compares wide passes of models with single steps, between the steps of running requests."""

    pool: Pool
    engine: EngineThread

    async def measure(self, name: str, passed: Callable[[], None] = lambda: None) -> Exactness:
        """Measure a model, which is loaded for it; `passed` is called after each pass.

        Raises BadRequest for an encoder, ModelError if it cannot be measured, and what loading
        raises.
        """
        from omlx.models.pool.load_weights import exactness_steps  # noqa: PLC0415 — see `import_mlx_lm`

        lease = await self.pool.lease(name)
        try:
            served = lease.served
            if not served.generates:
                raise BadRequest("exact.no_answers", param="model", model=served.id)
            resident = self.pool.residents.find(served.id)
            assert resident is not None
            target, cost_model = resident.weights[resident.entry.path], served.cost_model
            steps = exactness_steps(served.id, target, cost_model, served.context_length)
            step = partial(next, steps, _END)
            while await asyncio.wrap_future(self.engine.call(step)) is not _END:
                passed()
            assert cost_model.exactness is not None
            return cost_model.exactness
        finally:
            lease.release()


FORECAST_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """An expected beginning and its cost now; None while the engine is busy."""

    expected: Expected
    tokenized: Tokenized
    now: PromptForecast | None

    @property
    def tokens(self) -> int:
        return len(self.tokenized.tokens)

    @property
    def uncached(self) -> int | None:
        """Tokens to compute for a request now."""
        return None if self.now is None else max(0, self.tokens - self.now.cached)

    @property
    def changing(self) -> int | None:
        """Tokens behind the first changing span; None without any."""
        spans = self.tokenized.spans
        return self.tokens - spans[0] if spans else None

    @property
    def first_token_s(self) -> float | None:
        return None if self.now is None else self.now.first_token_s

    def to_json(self) -> Json:
        known = self.expected.known
        return {
            "client": known.client,
            "conversations": known.conversations,
            "used_at": known.used_at,
            "foreseen": self.expected.foreseen,
            "tokens": self.tokens,
            "changing_tokens": self.changing,
            "cached_tokens": None if self.now is None else self.now.cached,
            "uncached_tokens": self.uncached,
            "first_token_s": self.first_token_s,
        }


@dataclass(frozen=True, slots=True)
class PrefixService:
    """Prefix caches by model, for the API and the dashboard."""

    engine: EngineThread
    pool: Pool
    generations: GenerationService
    prewarmer: Prewarmer | None = None

    async def clear(self, name: str) -> None:
        """Forget every prefix of a model and how its prompts begin, in memory and on disk; returns
        after the current step.

        Raises NotFound, EngineDead.
        """
        model = self.pool.resolve(name).id
        if self.prewarmer is not None:  # first: it would compute, and keep, more
            await self.prewarmer.forget(model)
        await asyncio.wrap_future(self.engine.clear_prefixes(model))
        await self.pool.residents.remove_prefixes(model)

    async def probe(self, name: str, request: GenerationRequest) -> Json:
        """Return the tokens of the prompt, those of them that are cached, and when its first token
        would come; null if the model is not loaded.

        Modifies nothing, loads nothing. Raises NotFound, EngineDead, and BadRequest for an invalid
        prompt.
        """
        model = self.pool.resolve(name).id
        tokens = await self.generations.prompt_ids(replace(request, model=model))
        forecast = await asyncio.wrap_future(self.engine.forecast(model, tokens))
        return {
            "object": "prefix.probe",
            "model": model,
            "prompt_tokens": len(tokens),
            "cached_tokens": None if forecast is None else forecast.cached,
            "first_token_s": None if forecast is None else forecast.first_token_s,
        }

    async def beginnings(self, model: str) -> list[Forecast]:
        """Return the beginnings to expect of a loaded model, last used first, with their costs.

        Does not wait for a busy engine.
        """
        if self.prewarmer is None:
            return []
        expected = await self.prewarmer.expected(model)
        tokens = [tokenized.tokens for _, tokenized in expected]
        prompts = [(*ids, *ids[-1:]) for ids in tokens]  # a user's message follows
        forecasts: Sequence[PromptForecast | None] = [None] * len(prompts)
        with suppress(TimeoutError, EngineDead):
            asked = [asyncio.wrap_future(self.engine.forecast(model, each)) for each in prompts]
            forecasts = await asyncio.wait_for(asyncio.gather(*asked), FORECAST_TIMEOUT_S)
        return [
            Forecast(one, tokenized, forecast)
            for (one, tokenized), forecast in zip(expected, forecasts, strict=True)
        ]

    def prewarming(self, model: str) -> BeginningStats | None:
        """Return how far a model's beginnings are; None if it is not loaded, or none are stored."""
        return None if self.prewarmer is None else self.prewarmer.stats().get(model)
