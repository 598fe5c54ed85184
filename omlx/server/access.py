"""The edge of a request: one log line for each, and an answer where our own code failed.

The line says what was asked for, how it ended and how fast. Never what was said.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.errors import OmlxError
from omlx.server import errors
from omlx.server.stream import GenerationStream
from omlx.server.usage import timings
from omlx.telemetry.log import Fields, log_request
from omlx.telemetry.metrics import Metrics

CLIENT_GONE = 499
_NOTES = "omlx.notes"
_QUIET = frozenset({"/health", "/metrics"})
_LOOKING = ("/admin/parts/", "/admin/static/", "/admin/api/live")
"""What an open page asks for every few seconds, and what it is made of: logged only where it fails."""
_NO_ROUTE = "other"

log = logging.getLogger("omlx.server")


def note(scope: Scope, what: GenerationStream | OmlxError) -> None:
    """Tell the log what this request became."""
    scope.setdefault(_NOTES, []).append(what)


class AccessLog:
    """ASGI middleware, the outermost. A client that went before its answer was whole is logged as 499."""

    def __init__(self, app: ASGIApp, metrics: Metrics | None = None) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _QUIET:
            await self._app(scope, receive, send)
            return
        scope[_NOTES] = []
        begun, answer = time.monotonic(), _Answer(send)
        try:
            await self._app(scope, receive, answer)
        except Exception as error:  # the outer edge: a fault of ours ends this request and no other
            log.exception("a request failed")
            failure = errors.unexpected(error)
            note(scope, failure)
            if answer.status is None:
                await errors.response(failure, scope)(scope, receive, answer)
        finally:
            status = (answer.whole and answer.status) or CLIENT_GONE
            if status >= 400 or not scope["path"].startswith(_LOOKING):
                self._tell(scope, status, round((time.monotonic() - begun) * 1000, 1))

    def _tell(self, scope: Scope, status: int, ms: float) -> None:
        if self._metrics is not None:
            self._metrics.answered(*_route(scope), status)
        fields: Fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": ms,
        }
        for what in scope[_NOTES]:
            fields |= (
                _stream_fields(what) if isinstance(what, GenerationStream) else {"error": what.code}
            )
        log_request(fields)


class _Answer:
    """A `send` that remembers the status and whether the answer was sent to its end."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
        self.whole = message["type"] == "http.response.body" and not message.get("more_body", False)


def _route(scope: Scope) -> tuple[str, str]:
    """Method and route as labels of few values: what the API does not know is `other`."""
    route = scope.get("route")
    if isinstance(route, Route) and scope["method"] in (route.methods or ()):
        return scope["method"], route.path
    return _NO_ROUTE, _NO_ROUTE


def _stream_fields(stream: GenerationStream) -> Fields:
    fields: Fields = {"id": stream.id, "model": stream.served.id, "choices": stream.n}
    if stream.error is not None:
        fields["error"] = stream.error.code
    if stream.finishes:
        finishes = [stream.finishes[choice] for choice in sorted(stream.finishes)]
        times = timings(finishes, stream.prompts if len(finishes) == stream.n else 1)
        fields |= {
            "reason": ",".join(sorted({finish.reason.value for finish in finishes})),
            "prompt_n": times["prompt_n"],
            "cached_n": times["cache_n"],
            "predicted_n": times["predicted_n"],
            "rate": times["predicted_per_second"],
            "accepted": times["draft_n_accepted"],
            "proposed": times["draft_n"],
            "speculation": times["speculation"]["code"],
            "strategy": times["speculation"]["strategy"],
            "drafters": _listed(
                times["drafters"], lambda each: f"{each['accepted']}/{each['proposed']}"
            ),
            "gates": _listed(times["speculation"]["gates"], _gate),
        }
    return fields


def _listed(parts: Mapping[str, Any], show: Callable[[Any], str]) -> str:
    """`ngram 12/20, org/small 3/8`"""
    return ", ".join(f"{name} {show(part)}" for name, part in parts.items())


def _gate(told: Mapping[str, Any]) -> str:
    """`on`, or `off (spec.off.does_not_pay)`"""
    reason = told["reason"]
    return str(told["state"]) if reason is None else f"{told['state']} ({reason['code']})"
