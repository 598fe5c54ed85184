"""What requests leave behind: counts for good, the newest few of each model for its status, what goes on now."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Final

from omlx.engine.types import DrafterStats, Event, Finished, Gate, Request
from omlx.engine.types import RequestStats as RequestStats
from omlx.server.activity import Activity
from omlx.telemetry.metrics import Drafted, Gauges, Generated, Metrics

RECENT: Final = 32


class Record:
    """Kept on the event loop's thread. `gauges` is asked at every scrape."""

    def __init__(self, gauges: Callable[[], Gauges]) -> None:
        self.metrics = Metrics(gauges)
        self.activity = Activity()
        self._recent: defaultdict[str, deque[RequestStats]] = defaultdict(
            lambda: deque(maxlen=RECENT)
        )

    def began(self, model: str, request: Request) -> None:
        """A request is on its way to the engine."""
        self.activity.began(model, request)

    def heard(self, model: str, event: Event) -> None:
        """The engine tells of a request, also when its client has gone."""
        self.activity.heard(event)
        if isinstance(event, Finished):
            self._finished(model, event)

    def recent(self, model: str) -> Sequence[RequestStats]:
        """The newest answers of a model, the newest last."""
        return tuple(self._recent[model]) if model in self._recent else ()

    def _finished(self, model: str, event: Finished) -> None:
        """An answer has ended well, or its client has gone."""
        stats = event.stats
        self._recent[model].append(stats)
        answer = Generated(
            prompt=stats.prompt_n,
            cached=stats.cached_n,
            predicted=stats.predicted_n,
            queue_s=stats.queue_ms / 1000,
            prefill_s=stats.prompt_ms / 1000,
            decode_s=stats.predicted_ms / 1000,
            reason=event.reason.value,
            speculation=stats.speculation.code,
            gates={name: _gate(gate) for name, gate in stats.gates.items()},
        )
        self.metrics.generated(
            model, answer, {name: _drafted(each) for name, each in stats.drafters.items()}
        )


def _drafted(stats: DrafterStats) -> Drafted:
    return Drafted(
        stats.proposed,
        stats.accepted,
        stats.rounds,
        stats.accepted_at,
        stats.spans,
        stats.repairs,
        stats.draft_ms / 1000,
        stats.verify_ms / 1000,
    )


def _gate(gate: Gate) -> tuple[str, str]:
    return gate.state, gate.reason.code if gate.reason is not None else ""
