"""The requests that have not ended, and who receives their events. On the engine thread."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from omlx.engine.types import Event, EventSink, Failed, Finished, Request
from omlx.errors import OmlxError

log = logging.getLogger("omlx.engine")


class OpenRequests:
    """Sinks by request id. `background` has the requests that the next one cancels."""

    def __init__(self) -> None:
        self._sinks: dict[str, EventSink] = {}
        self.background: set[str] = set()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sinks

    def __bool__(self) -> bool:
        return bool(self._sinks)

    def add(self, request: Request, sink: EventSink) -> None:
        self._sinks[request.id] = sink
        if request.background:
            self.background.add(request.id)

    def publish(self, events: Sequence[Event]) -> None:
        """Call each sink once with its events. A sink that raises loses its events only."""
        by_sink: defaultdict[EventSink, list[Event]] = defaultdict(list)
        for event in events:
            if (sink := self._sinks.get(event.request_id)) is not None:
                by_sink[sink].append(event)
            if isinstance(event, Finished | Failed):
                self._sinks.pop(event.request_id, None)
                self.background.discard(event.request_id)
        for sink, batch in by_sink.items():
            try:
                sink(batch)
            except Exception:  # the edge to the HTTP side: its event loop may be closed
                log.exception("a listener failed; its events are lost")

    def fail(self, error: OmlxError) -> list[str]:
        """End every request with an error. Return their ids."""
        failed = list(self._sinks)
        self.publish([Failed(request_id, error) for request_id in failed])
        return failed
