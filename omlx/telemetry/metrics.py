"""Metrics for Prometheus: numbers and names only.

Counters and histograms fill as requests end; gauges are read at every scrape. Nothing is shared
between two servers of one process. Labels have a bounded number of values: ids of models, names of
drafters, codes, routes of the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily as CounterFamily
from prometheus_client.core import GaugeMetricFamily as GaugeFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omlx.records import BeginningStats, DrafterStats, PrefixStats, RequestStats

WAIT_BUCKETS_S: Final = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120)
DECODE_BUCKETS_S: Final = (0.05, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)

disable_created_metrics()  # type: ignore[no-untyped-call]


_MODEL: Final = ("model",)
_DRAFTER: Final = ("model", "drafter")
_ACCEPTED_AT: Final = "rounds whose draft was accepted up to a position, from 1"
_COUNTERS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("http_requests", "HTTP requests answered", ("method", "route", "status")),
    ("answers", "answers by finish reason", (*_MODEL, "reason")),
    ("speculation_outcomes", "answers by the outcome of speculation", (*_MODEL, "code")),
    ("prompt_tokens", "tokens of prompts", _MODEL),
    ("cached_tokens", "prompt tokens restored from the prefix cache", _MODEL),
    ("predicted_tokens", "tokens generated", _MODEL),
    ("draft_proposed_tokens", "draft tokens verified", _DRAFTER),
    ("draft_accepted_tokens", "draft tokens accepted", _DRAFTER),
    ("draft_rounds", "draft-and-verify rounds", _DRAFTER),
    ("draft_accepted_at", _ACCEPTED_AT, (*_DRAFTER, "position")),
    ("draft_gates", "answers by gate at the end", (*_DRAFTER, "state", "code")),
    ("draft_spans", "rounds by how their window ended", (*_DRAFTER, "class")),
    ("draft_repairs", "cache rollbacks by kind", (*_DRAFTER, "kind")),
    ("draft_seconds", "time spent drafting, where measured", _DRAFTER),
    ("verify_seconds", "time spent verifying, where measured", _DRAFTER),
)
_HISTOGRAMS: Final = (
    ("queue_seconds", "from submission to admission", WAIT_BUCKETS_S),
    ("prefill_seconds", "from admission to the first token", WAIT_BUCKETS_S),
    ("decode_seconds", "from the first token to the last", DECODE_BUCKETS_S),
)
"""Names after `omlx_`, help texts, and labels or buckets."""

Family: TypeAlias = GaugeFamily | CounterFamily


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
    """Prometheus metrics. `gauges` is called at every scrape, on the scraping thread."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_GaugeCollector(gauges))
        self._counters = {
            name: Counter(f"omlx_{name}", help, labels, registry=self._registry)
            for name, help, labels in _COUNTERS
        }
        self._histograms = {
            name: Histogram(f"omlx_{name}", help, _MODEL, buckets=buckets, registry=self._registry)
            for name, help, buckets in _HISTOGRAMS
        }

    def answered(self, method: str, route: str, status: int) -> None:
        self._count("http_requests", method, route, str(status))

    def finished(self, model: str, reason: str, stats: RequestStats) -> None:
        self._count("answers", model, reason)
        self._count("speculation_outcomes", model, stats.speculation.code)
        self._count("prompt_tokens", model, by=stats.prompt_n)
        self._count("cached_tokens", model, by=stats.cached_n)
        self._count("predicted_tokens", model, by=stats.predicted_n)
        times = (stats.queue_ms, stats.prompt_ms, stats.predicted_ms)
        for histogram, milliseconds in zip(self._histograms.values(), times, strict=True):
            histogram.labels(model).observe(milliseconds / 1000)
        for name, gate in stats.gates.items():
            code = "" if gate.reason is None else gate.reason.code
            self._count("draft_gates", model, name, gate.state, code)
        for name, drafter in stats.drafters.items():
            self._drafter(model, name, drafter)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in a format admitted by `accept`, and the content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        self._counters[name].labels(*labels).inc(by)

    def _drafter(self, model: str, name: str, stats: DrafterStats) -> None:
        self._count("draft_proposed_tokens", model, name, by=stats.proposed)
        self._count("draft_accepted_tokens", model, name, by=stats.accepted)
        self._count("draft_rounds", model, name, by=stats.rounds)
        self._count("draft_seconds", model, name, by=stats.draft_ms / 1000)
        self._count("verify_seconds", model, name, by=stats.verify_ms / 1000)
        for i, count in enumerate(stats.accepted_at):
            self._count("draft_accepted_at", model, name, str(i + 1), by=count)
        for span, count in stats.spans.items():
            self._count("draft_spans", model, name, span, by=count)
        for repair, count in stats.repairs.items():
            self._count("draft_repairs", model, name, repair, by=count)


class _GaugeCollector(Collector):
    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[Family]:
        now = self._gauges()
        up = "1 while the engine thread lives and does not hang"
        yield GaugeFamily("omlx_engine_up", up, value=float(now.up))
        errors = "errors of the device"
        yield _family(CounterFamily, "device_errors", errors, ("kind",), now.device_errors)
        rows = {
            (model, state): count
            for model, states in now.rows.items()
            for state, count in states.items()
        }
        yield _family(GaugeFamily, "rows", "requests in the engine", ("model", "state"), rows)
        memory = "memory of the process"
        yield _family(GaugeFamily, "memory_bytes", memory, ("what",), now.memory)
        yield from _stage_metrics(now)
        yield from _answer_metrics(now)
        yield from _beginning_metrics(now)
        for kind, attribute, name, help in _PREFIX_METRICS:
            get = attrgetter(attribute)
            values = {model: get(stats) for model, stats in now.prefixes.items()}
            yield _family(kind, f"prefix_{name}", help, _MODEL, values)
        for event in ("stored", "evicted"):
            pieces = {
                (model, piece): count
                for model, stats in now.prefixes.items()
                for piece, count in getattr(stats, event).items()
            }
            help = f"pieces of caches {event}"
            yield _family(CounterFamily, f"prefix_{event}", help, ("model", "kind"), pieces)


def _family(
    kind: type[Family], name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, float]
) -> Family:
    """Return a family of samples; `values` by label, or by a tuple of labels."""
    family = kind(f"omlx_{name}", help, labels=labels)
    for key, value in values.items():
        family.add_metric(key if isinstance(key, tuple) else (str(key),), value)
    return family


def _answer_metrics(now: Gauges) -> Iterable[Family]:
    if now.answers_on_disk is None:
        return
    count, nbytes = now.answers_on_disk
    yield GaugeFamily("omlx_answers_on_disk", "answers recorded on disk", value=count)
    yield GaugeFamily("omlx_answers_on_disk_bytes", "their size", value=nbytes)
    help, states = "clients that returned to an answer", now.answers_returned_to
    yield _family(CounterFamily, "answers_returned_to", help, ("state",), states)


def _beginning_metrics(now: Gauges) -> Iterable[Family]:
    found, paused = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for model, stats in now.beginnings.items():
        found |= {(model, "done"): stats.done, (model, "waiting"): stats.waiting}
        if stats.paused is not None:
            paused[model, stats.paused.code] = 1
    computed = {model: stats.computed_tokens for model, stats in now.beginnings.items()}
    left = {model: stats.budget_left_s for model, stats in now.beginnings.items()}
    help = "beginnings of prompts that return"
    yield _family(GaugeFamily, "beginnings", help, ("model", "state"), found)
    help = "1 while beginnings wait, by the reason why none is computed"
    yield _family(GaugeFamily, "beginnings_paused", help, ("model", "code"), paused)
    help = "tokens computed while idle"
    yield _family(CounterFamily, "beginnings_computed_tokens", help, _MODEL, computed)
    help = "time that is left to compute them"
    yield _family(GaugeFamily, "beginnings_budget_seconds", help, _MODEL, left)


def _stage_metrics(now: Gauges) -> Iterable[Family]:
    if now.stage_restarts is None:
        return
    help = "round trip of the newest beat to a stage"
    yield _family(GaugeFamily, "stage_rtt_seconds", help, ("rank",), now.stage_rtts)
    help, restarts = "how often the stages were started again", float(now.stage_restarts)
    yield CounterFamily("omlx_stage_restarts", help, value=restarts)


_PREFIX_METRICS: Final[tuple[tuple[type[Family], str, str, str], ...]] = (
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
