"""Active and ended requests, collected on the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.models.pool.resident import State
from omlx.server.services import Services

from .request_views import (
    AnswerView,
    LoadingView,
    RequestView,
    answer_view,
    loading_view,
    request_views,
)


@dataclass(frozen=True, slots=True)
class Requests:
    services: Services

    def active(self) -> Sequence[RequestView]:
        engine, pool = self.services.engine, self.services.pool
        served = [model.id for model in pool.loaded]
        queued = {model: engine.request_counts(model).waiting for model in served}
        return request_views(self.services.activity.running, queued)

    def loading(self) -> Sequence[LoadingView]:
        """Return the models that are being loaded, or that requests wait for."""
        pool = self.services.pool
        statuses = [(entry.id, pool.status(entry.id)) for entry in pool.models]
        return [
            loading_view(model, status)
            for model, status in statuses
            if status.state is State.LOADING or status.waiting
        ]

    def latest(self, count: int) -> Sequence[AnswerView]:
        """Return the latest ended requests, the newest first, however long ago they ended."""
        ended = self.services.activity.outcomes()[-count:]
        return [answer_view(outcome) for outcome in reversed(ended)]
