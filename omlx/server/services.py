"""What the API endpoints and the dashboard share, built once by the composition root and passed
on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from omlx.engine.device_errors import DEVICE
from omlx.engine.stage.stages import Stages
from omlx.engine.thread import EngineThread
from omlx.models.hub.downloads import Downloads
from omlx.models.pool.footprint import mlx_bytes
from omlx.models.pool.pool import Pool
from omlx.receipts.store import AnswerStore
from omlx.receipts.verifier import Verifier
from omlx.server.beginnings.prewarmer import Prewarmer
from omlx.server.beginnings.store import BeginningStore
from omlx.server.endpoints.prefixes import PrefixService
from omlx.server.http.keys import ApiKeys
from omlx.server.journal.journal import Journal
from omlx.server.request.activity import Activity
from omlx.server.request.generation import GenerationService
from omlx.server.request.media.fetch import UrlReader
from omlx.settings.keys import KeyFile
from omlx.telemetry import usage_file
from omlx.telemetry.metrics import Gauges, Metrics
from omlx.telemetry.usage_history import UsageHistory


@dataclass(frozen=True, slots=True)
class Services:
    engine: EngineThread
    pool: Pool
    metrics: Metrics
    activity: Activity
    generations: GenerationService
    prefixes: PrefixService
    downloads: Downloads
    verifier: Verifier
    api_keys: ApiKeys
    journal: Journal | None = None
    prewarmer: Prewarmer | None = None


@dataclass(frozen=True, slots=True)
class Stores:
    """What the services keep on disk: downloads, answers that have a receipt, the journal of
    answers that outlive the process, statistics and named API keys in `home`, and beginnings of
    prompts; None: those are off.
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
    prewarmer = None
    if stores.beginnings is not None:
        prewarmer = Prewarmer(
            engine, pool, stores.beginnings, lambda: pool.catalog.configuration.resolve().settings
        )
    metrics = Metrics(lambda: _gauges(engine, pool, stages, stores.journal, prewarmer))
    history = UsageHistory(None if stores.home is None else stores.home / usage_file.FILE)
    activity = Activity(metrics, history=history)
    generations = GenerationService(engine, pool, activity, stores.answers, urls, stores.beginnings)
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
        journal=stores.journal,
        prewarmer=prewarmer,
    )


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
