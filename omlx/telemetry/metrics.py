"""Metrics for Prometheus: numbers and names only.

Counters and histograms fill as requests end; gauges are read at every scrape. Nothing is shared
between two servers of one process. Labels have a bounded number of values: ids of models, names of
drafters, codes, routes of the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily as CounterFamily
from prometheus_client.core import GaugeMetricFamily as GaugeFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omlx.records import BeginningStats, DrafterStats, PrefixStats, RequestStats

WAIT_BUCKETS_S: Final = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120)
DECODE_BUCKETS_S: Final = (0.05, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)

disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Gauges:
    """Current values of the process, read at every scrape.

    rows: requests by model, then state. memory: bytes by kind of use. stage_rtts: seconds of a
    round trip to a follower, by rank. stage_restarts: restarts of the staged group, None without
    stages. answers_on_disk: count and bytes, None while recording is off. answers_returned_to:
    clients that returned to an answer, by state. device_errors: counts since the start, by kind.
    """

    up: bool
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    prefixes: Mapping[str, PrefixStats] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    stage_rtts: Mapping[int, float] = field(default_factory=dict)
    stage_restarts: int | None = None
    answers_on_disk: tuple[int, int] | None = None
    answers_returned_to: Mapping[str, int] = field(default_factory=dict)
    beginnings: Mapping[str, BeginningStats] = field(default_factory=dict)
    device_errors: Mapping[str, int] = field(default_factory=dict)


class Metrics:
    """`gauges` is called at every scrape, on the scraping thread."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_GaugeCollector(gauges))
        model, drafter = ("model",), ("model", "drafter")
        self._http = self._counter(
            "http_requests", "HTTP requests answered", ("method", "route", "status")
        )
        self._answers = self._counter("answers", "answers by finish reason", ("model", "reason"))
        self._outcomes = self._counter(
            "speculation_outcomes", "answers by the outcome of speculation", (*model, "code")
        )
        self._prompt = self._counter("prompt_tokens", "tokens of prompts", model)
        self._cached = self._counter(
            "cached_tokens", "prompt tokens restored from the prefix cache", model
        )
        self._predicted = self._counter("predicted_tokens", "tokens generated", model)
        self._queue = self._histogram(
            "queue_seconds", "from submission to admission", WAIT_BUCKETS_S
        )
        self._prefill = self._histogram(
            "prefill_seconds", "from admission to the first token", WAIT_BUCKETS_S
        )
        self._decode = self._histogram(
            "decode_seconds", "from the first token to the last", DECODE_BUCKETS_S
        )
        self._proposed = self._counter("draft_proposed_tokens", "draft tokens verified", drafter)
        self._accepted = self._counter("draft_accepted_tokens", "draft tokens accepted", drafter)
        self._rounds = self._counter("draft_rounds", "draft-and-verify rounds", drafter)
        self._at = self._counter(
            "draft_accepted_at",
            "rounds whose draft was accepted up to a position, from 1",
            (*drafter, "position"),
        )
        self._gates = self._counter(
            "draft_gates", "answers by gate at the end", (*drafter, "state", "code")
        )
        self._spans = self._counter(
            "draft_spans", "rounds by how their window ended", (*drafter, "class")
        )
        self._repairs = self._counter(
            "draft_repairs", "cache rollbacks by kind", (*drafter, "kind")
        )
        self._draft_s = self._counter(
            "draft_seconds", "time spent drafting, where measured", drafter
        )
        self._verify_s = self._counter(
            "verify_seconds", "time spent verifying, where measured", drafter
        )

    def answered(self, method: str, route: str, status: int) -> None:
        self._http.labels(method, route, str(status)).inc()

    def finished(self, model: str, reason: str, stats: RequestStats) -> None:
        self._answers.labels(model, reason).inc()
        self._outcomes.labels(model, stats.speculation.code).inc()
        self._prompt.labels(model).inc(stats.prompt_n)
        self._cached.labels(model).inc(stats.cached_n)
        self._predicted.labels(model).inc(stats.predicted_n)
        self._queue.labels(model).observe(stats.queue_ms / 1000)
        self._prefill.labels(model).observe(stats.prompt_ms / 1000)
        self._decode.labels(model).observe(stats.predicted_ms / 1000)
        for name, gate in stats.gates.items():
            code = "" if gate.reason is None else gate.reason.code
            self._gates.labels(model, name, gate.state, code).inc()
        for name, drafter in stats.drafters.items():
            self._drafter(model, name, drafter)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in a format admitted by `accept`, and the content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _drafter(self, model: str, name: str, stats: DrafterStats) -> None:
        self._proposed.labels(model, name).inc(stats.proposed)
        self._accepted.labels(model, name).inc(stats.accepted)
        self._rounds.labels(model, name).inc(stats.rounds)
        self._draft_s.labels(model, name).inc(stats.draft_ms / 1000)
        self._verify_s.labels(model, name).inc(stats.verify_ms / 1000)
        for i, count in enumerate(stats.accepted_at):
            self._at.labels(model, name, str(i + 1)).inc(count)
        for span, count in stats.spans.items():
            self._spans.labels(model, name, span).inc(count)
        for repair, count in stats.repairs.items():
            self._repairs.labels(model, name, repair).inc(count)

    def _counter(self, name: str, help: str, labels: Iterable[str]) -> Counter:
        return Counter(f"omlx_{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"omlx_{name}", help, ("model",), buckets=buckets, registry=self._registry)


class _GaugeCollector(Collector):
    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeFamily | CounterFamily]:
        now = self._gauges()
        yield GaugeFamily(
            "omlx_engine_up",
            "1 while the engine thread lives and does not hang",
            value=float(now.up),
        )
        errors = CounterFamily("omlx_device_errors", "errors of the device", labels=("kind",))
        for fault, count in now.device_errors.items():
            errors.add_metric((fault,), count)
        yield errors
        rows = GaugeFamily("omlx_rows", "requests in the engine", labels=("model", "state"))
        for model, states in now.rows.items():
            for state, count in states.items():
                rows.add_metric((model, state), count)
        yield rows
        memory = GaugeFamily("omlx_memory_bytes", "memory of the process", labels=("what",))
        for quantity, value in now.memory.items():
            memory.add_metric((quantity,), value)
        yield memory
        yield from _stage_metrics(now)
        yield from _answer_metrics(now)
        yield from _beginning_metrics(now)
        for kind, attribute, name, help in _PREFIX_METRICS:
            family = kind(f"omlx_prefix_{name}", help, labels=("model",))
            for model, stats in now.prefixes.items():
                family.add_metric((model,), attrgetter(attribute)(stats))
            yield family
        for event in ("stored", "evicted"):
            family = CounterFamily(
                f"omlx_prefix_{event}", f"pieces of caches {event}", labels=("model", "kind")
            )
            for model, stats in now.prefixes.items():
                for piece, count in getattr(stats, event).items():
                    family.add_metric((model, piece), count)
            yield family


def _answer_metrics(now: Gauges) -> Iterable[GaugeFamily | CounterFamily]:
    if now.answers_on_disk is None:
        return
    count, nbytes = now.answers_on_disk
    yield GaugeFamily("omlx_answers_on_disk", "answers recorded on disk", value=count)
    yield GaugeFamily("omlx_answers_on_disk_bytes", "their size", value=nbytes)
    returns = CounterFamily(
        "omlx_answers_returned_to", "clients that returned to an answer", labels=("state",)
    )
    for state, times in now.answers_returned_to.items():
        returns.add_metric((state,), times)
    yield returns


def _beginning_metrics(now: Gauges) -> Iterable[GaugeFamily | CounterFamily]:
    beginnings = GaugeFamily(
        "omlx_beginnings", "beginnings of prompts that return", labels=("model", "state")
    )
    paused = GaugeFamily(
        "omlx_beginnings_paused",
        "1 while beginnings wait, by the reason why none is computed",
        labels=("model", "code"),
    )
    computed = CounterFamily(
        "omlx_beginnings_computed_tokens", "tokens computed while idle", labels=("model",)
    )
    budget = GaugeFamily(
        "omlx_beginnings_budget_seconds", "time that is left to compute them", labels=("model",)
    )
    for model, stats in now.beginnings.items():
        beginnings.add_metric((model, "done"), stats.done)
        beginnings.add_metric((model, "waiting"), stats.waiting)
        if stats.paused is not None:
            paused.add_metric((model, stats.paused.code), 1)
        computed.add_metric((model,), stats.computed_tokens)
        budget.add_metric((model,), stats.budget_left_s)
    yield from (beginnings, paused, computed, budget)


def _stage_metrics(now: Gauges) -> Iterable[GaugeFamily | CounterFamily]:
    if now.stage_restarts is None:
        return
    trips = GaugeFamily(
        "omlx_stage_rtt_seconds", "round trip of the newest beat to a stage", labels=("rank",)
    )
    for rank, seconds in now.stage_rtts.items():
        trips.add_metric((str(rank),), seconds)
    yield trips
    yield CounterFamily(
        "omlx_stage_restarts",
        "how often the stages were started again",
        value=float(now.stage_restarts),
    )


_PREFIX_METRICS: Final[tuple[tuple[type[GaugeFamily | CounterFamily], str, str, str], ...]] = (
    (GaugeFamily, "nbytes", "bytes", "size of the prefix cache"),
    (GaugeFamily, "max_bytes", "limit_bytes", "limit of the prefix cache"),
    (GaugeFamily, "tokens", "tokens", "tokens in the prefix cache, each once"),
    (CounterFamily, "hits", "hits", "prompts of which a prefix was cached"),
    (CounterFamily, "misses", "misses", "prompts of which no prefix was cached"),
    (CounterFamily, "hit_tokens", "hit_tokens", "tokens restored by hits"),
    (CounterFamily, "states_used", "states_used", "recurrent states restored"),
    (CounterFamily, "refused", "refused", "prefixes for which there was no room"),
    (GaugeFamily, "disk.nbytes", "disk_bytes", "size of the prefixes on disk"),
    (GaugeFamily, "disk.max_bytes", "disk_limit_bytes", "limit of the prefixes on disk"),
    (GaugeFamily, "disk.pieces", "disk_pieces", "pieces of caches on disk"),
    (GaugeFamily, "disk.written_today", "disk_written_today_bytes", "bytes written since midnight"),
    (CounterFamily, "disk.hits", "disk_hits", "prompts of which a prefix came from disk"),
    (CounterFamily, "disk.hit_tokens", "disk_hit_tokens", "tokens restored from disk"),
    (CounterFamily, "disk.damaged", "disk_damaged", "pieces dropped because of their checksum"),
)
"""Metric kind, field of PrefixStats, name after `omlx_prefix_`, help text."""
