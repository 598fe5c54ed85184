"""What requests leave behind: counts for good, the newest few of each model for its status, what goes on now."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Final

from omlx.engine.types import Event, Finished, Request
from omlx.records import RequestStats
from omlx.server.activity import Activity
from omlx.telemetry.metrics import Gauges, Metrics

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
        self._recent[model].append(event.stats)
        self.metrics.finished(model, event.reason.value, event.stats)
