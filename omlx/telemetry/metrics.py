"""What the server counts, in the form that Prometheus reads. Numbers and names only; who has them tells them.

Counters and histograms fill as requests end; gauges are asked for at every scrape. Nothing is shared between two
servers of one process. The labels take few values: ids of models, names of drafters, codes, routes of the API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omlx.records import DrafterStats, PrefixStats, RequestStats

WAITS_S: Final = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120)
DECODES_S: Final = (0.05, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)

disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Gauges:
    """How things are now: rows by model, then state; prefixes by model; the memory that is used and its limit."""

    up: bool
    rows: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    prefixes: Mapping[str, PrefixStats] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)


class Metrics:
    """`gauges` is called at every scrape, on the scraping thread."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Now(gauges))
        each, drafter = ("model",), ("model", "drafter")
        self._http = self._counter(
            "http_requests", "HTTP requests answered", ("method", "route", "status")
        )
        self._answers = self._counter("answers", "answers by how they ended", ("model", "reason"))
        self._outcomes = self._counter(
            "speculation_outcomes", "answers by what became of speculation", (*each, "code")
        )
        self._prompt = self._counter("prompt_tokens", "tokens of prompts", each)
        self._cached = self._counter(
            "cached_tokens", "tokens of prompts that were not computed again", each
        )
        self._predicted = self._counter("predicted_tokens", "tokens generated", each)
        self._queue = self._histogram("queue_seconds", "from submission to admission", WAITS_S)
        self._prefill = self._histogram(
            "prefill_seconds", "from admission to the first token", WAITS_S
        )
        self._decode = self._histogram(
            "decode_seconds", "from the first token to the last", DECODES_S
        )
        self._proposed = self._counter(
            "draft_proposed_tokens", "tokens drafted and verified", drafter
        )
        self._accepted = self._counter("draft_accepted_tokens", "drafted tokens accepted", drafter)
        self._rounds = self._counter("draft_rounds", "windows verified", drafter)
        self._at = self._counter(
            "draft_accepted_at", "windows right up to a position, from 1", (*drafter, "position")
        )
        self._gates = self._counter(
            "draft_gates", "answers by gate at the end", (*drafter, "state", "code")
        )
        self._spans = self._counter(
            "draft_spans", "windows verified, by how they ended", (*drafter, "class")
        )
        self._repairs = self._counter(
            "draft_repairs", "caches taken back, by how", (*drafter, "kind")
        )
        self._draft_s = self._counter(
            "draft_seconds", "time spent drafting, where it is known", drafter
        )
        self._verify_s = self._counter(
            "verify_seconds", "time spent verifying, where it is known", drafter
        )

    def answered(self, method: str, route: str, status: int) -> None:
        self._http.labels(method, route, str(status)).inc()

    def finished(self, model: str, reason: str, stats: RequestStats) -> None:
        """Count a finished request; `reason` is its finish reason."""
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
            self._drafted(model, name, drafter)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """All of it in a form that `accept` admits, and that form's content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _drafted(self, model: str, drafter: str, drafted: DrafterStats) -> None:
        self._proposed.labels(model, drafter).inc(drafted.proposed)
        self._accepted.labels(model, drafter).inc(drafted.accepted)
        self._rounds.labels(model, drafter).inc(drafted.rounds)
        self._draft_s.labels(model, drafter).inc(drafted.draft_ms / 1000)
        self._verify_s.labels(model, drafter).inc(drafted.verify_ms / 1000)
        for i, count in enumerate(drafted.accepted_at):
            self._at.labels(model, drafter, str(i + 1)).inc(count)
        for span, count in drafted.spans.items():
            self._spans.labels(model, drafter, span).inc(count)
        for repair, count in drafted.repairs.items():
            self._repairs.labels(model, drafter, repair).inc(count)

    def _counter(self, name: str, help: str, labels: Iterable[str]) -> Counter:
        return Counter(f"omlx_{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"omlx_{name}", help, ("model",), buckets=buckets, registry=self._registry)


class _Now(Collector):
    """The gauges, as they are when somebody looks."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        now = self._gauges()
        yield GaugeMetricFamily(
            "omlx_engine_up", "1 while the engine thread lives", value=float(now.up)
        )
        rows = GaugeMetricFamily("omlx_rows", "requests in the engine", labels=("model", "state"))
        for model, states in now.rows.items():
            for state, count in states.items():
                rows.add_metric((model, state), count)
        yield rows
        yield _family(
            GaugeMetricFamily, "memory_bytes", "memory of the process", ("what",), now.memory
        )
        for name, told in _PREFIX_GAUGES.items():
            values = {model: getattr(each, name) for model, each in now.prefixes.items()}
            yield _family(GaugeMetricFamily, f"prefix_{told[0]}", told[1], ("model",), values)
        for name, told in _PREFIX_COUNTS.items():
            values = {model: getattr(each, name) for model, each in now.prefixes.items()}
            yield _family(CounterMetricFamily, f"prefix_{told[0]}", told[1], ("model",), values)
        for kind in ("stored", "evicted"):
            family = CounterMetricFamily(
                f"omlx_prefix_{kind}", f"pieces of caches {kind}", labels=("model", "kind")
            )
            for model, each in now.prefixes.items():
                for piece, count in getattr(each, kind).items():
                    family.add_metric((model, piece), count)
            yield family


_PREFIX_GAUGES: Final = {
    "nbytes": ("bytes", "bytes of kept prefixes"),
    "max_bytes": ("limit_bytes", "bytes that kept prefixes may take"),
    "tokens": ("tokens", "tokens of kept prefixes, each once"),
}
_PREFIX_COUNTS: Final = {
    "hits": ("hits", "prompts that began with something kept"),
    "misses": ("misses", "prompts that did not"),
    "hit_tokens": ("hit_tokens", "tokens that hits did not compute"),
    "states_used": ("states_used", "recurrent states that were taken up"),
    "refused": ("refused", "prefixes for which there was no room"),
}

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


def _family(
    kind: type[Family], name: str, help: str, labels: tuple[str, ...], values: Mapping[str, int]
) -> Family:
    family = kind(f"omlx_{name}", help, labels=labels)
    for label, value in values.items():
        family.add_metric((label,), value)
    return family
