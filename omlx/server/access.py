"""The outermost middleware: `PathVersion` normalizes paths, `AccessLog` writes a line per request.

`AccessLog` also records requests without a stream in `Activity`, and answers with an error where
our own code failed. A line holds method, path, status and speed, never text of prompt or output.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omlx.errors import EngineDead, OmlxError
from omlx.server.http import errors
from omlx.server.http.guard import caller_of, is_dashboard
from omlx.server.http.transport import NamedModel, note, notes
from omlx.server.request.activity import CLIENT_GONE, Activity
from omlx.server.request.stream import GenerationStream
from omlx.server.request.usage import timings
from omlx.telemetry.log import Fields, log_request
from omlx.telemetry.metrics import Metrics

_UNLOGGED: Final = frozenset({"/health", "/metrics"})
_POLLED: Final = ("/admin/parts/", "/admin/static/", "/admin/api/live", "/admin/api/session")
"""Path prefixes polled by an open dashboard: logged only on failure."""
_SHOWN_PATH: Final = 200
_NO_ROUTE: Final = "other"
_API: Final = ("/v1/", "/api/")

log = logging.getLogger("omlx.server")


class AccessLog:
    """Requests whose client disconnected before the complete response get status 499."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics | None = None, activity: Activity | None = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._activity = activity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _UNLOGGED:
            await self._app(scope, receive, send)
            return
        started_at, response = time.monotonic(), _ResponseWatch(send)
        try:
            await self._app(scope, receive, response)
        except asyncio.CancelledError:  # the drain is over, and nothing awaits this task
            ended = EngineDead("engine.stopped")
            note(scope, ended)
            if response.status is None:
                await errors.response(ended, scope)(scope, receive, response)
        except Exception as error:  # the outer edge: our fault ends this request and no other
            log.exception("a request failed")
            failure = errors.unexpected(error)
            note(scope, failure)
            if response.status is None:
                await errors.response(failure, scope)(scope, receive, response)
        finally:
            status = (response.complete and response.status) or CLIENT_GONE
            seconds = time.monotonic() - started_at
            if status >= 400 or not scope["path"].startswith(_POLLED):
                self._log(scope, status, round(seconds * 1000, 1))
            if self._activity is not None and _is_for_api(scope):
                self._record(self._activity, scope, status, seconds)

    def _log(self, scope: Scope, status: int, ms: float) -> None:
        if self._metrics is not None:
            self._metrics.answered(*_route(scope), status)
        fields: Fields = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": ms,
        }
        for outcome in notes(scope):
            if isinstance(outcome, GenerationStream):
                fields |= _stream_fields(outcome)
            elif isinstance(outcome, OmlxError):
                fields["error"] = outcome.code
        viewed = is_dashboard(scope["path"]) and scope["method"] == "GET" and status < 400
        log_request(fields, logging.DEBUG if viewed else logging.INFO)

    def _record(self, activity: Activity, scope: Scope, status: int, seconds: float) -> None:
        """Record the caller, and a request without a stream unless it only read something.

        Requests with a stream are recorded by the engine's events.
        """
        noted, caller = notes(scope), caller_of(scope)
        activity.heard_from(caller, refused=status >= 400 and status != CLIENT_GONE)
        has_stream = any(isinstance(outcome, GenerationStream) for outcome in noted)
        if has_stream or (status < 400 and scope["method"] != "POST"):
            return
        error = next((outcome for outcome in noted if isinstance(outcome, OmlxError)), None)
        named = next((outcome.name for outcome in noted if isinstance(outcome, NamedModel)), None)
        activity.answered(scope["path"][:_SHOWN_PATH], caller, status, seconds, error, named)


class _ResponseWatch:
    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
        is_body = message["type"] == "http.response.body"
        self.complete = is_body and not message.get("more_body", False)


def _is_for_api(scope: Scope) -> bool:
    """Whether a request was meant for the API: not the dashboard, not a browser's /favicon.ico.

    A POST to an unknown path counts: the client may lack `/v1` in its address.
    """
    path: str = scope["path"]
    is_call = path.startswith(_API) or scope["method"] == "POST"
    return is_call and not is_dashboard(path)


def _route(scope: Scope) -> tuple[str, str]:
    """Return method and route as metric labels; unknown routes are `other`, for bounded
    cardinality.
    """
    route = scope.get("route")
    if isinstance(route, Route) and scope["method"] in (route.methods or ()):
        return scope["method"], route.path
    return _NO_ROUTE, _NO_ROUTE


def _stream_fields(stream: GenerationStream) -> Fields:
    fields: Fields = {"id": stream.id, "model": stream.served.id, "choices": stream.n}
    if stream.error is not None:
        fields["error"] = stream.error.code
    if stream.warnings:
        fields["warnings"] = ",".join(sorted({warning.code for warning in stream.warnings}))
    if not stream.finishes:
        return fields
    finishes = [stream.finishes[choice] for choice in sorted(stream.finishes)]
    # Which prompt a choice belongs to is known only if all choices have finished.
    record = timings(finishes, stream.prompts if len(finishes) == stream.n else 1)
    speculation = record["speculation"]
    return fields | {
        "reason": ",".join(sorted({finish.reason.value for finish in finishes})),
        "prompt_n": record["prompt_n"],
        "cached_n": record["cache_n"],
        "predicted_n": record["predicted_n"],
        "rate": record["predicted_per_second"],
        "accepted": record["draft_n_accepted"],
        "proposed": record["draft_n"],
        "speculation": speculation["code"],
        "strategy": speculation["strategy"],
        "drafters": ", ".join(
            f"{name} {drafter['accepted']}/{drafter['proposed']}"
            for name, drafter in record["drafters"].items()
        ),
        "gates": ", ".join(f"{name} {_gate(gate)}" for name, gate in speculation["gates"].items()),
        **({"restarts": record["restarts"]} if "restarts" in record else {}),
    }


def _gate(gate: Mapping[str, Any]) -> str:
    """Format a gate: `on`, or `off (spec.off.does_not_pay)`."""
    reason = gate["reason"]
    if reason is None:
        return str(gate["state"])
    return f"{gate['state']} ({reason['code']})"


VERSION: Final = "v1"
_VERSIONED: Final = frozenset(
    {"chat", "completions", "embeddings", "messages", "models", "rerank", "responses"}
)
"""First segments of the paths below `/v1`."""
_OTHERS: Final = frozenset(
    {VERSION, "v2", "api", "detokenize", "health", "metrics", "openapi.json", "tokenize"}
)
"""First segments of the other API paths."""


class PathVersion:
    """Normalizes API paths before any other middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw_path = canonical(scope["raw_path"].decode("latin-1")).encode("latin-1")
            scope = {**scope, "path": canonical(scope["path"]), "raw_path": raw_path}
        await self._app(scope, receive, send)


def canonical(path: str) -> str:
    """Return an API path without empty segments, with exactly one `/v1`; others unchanged."""
    segments = [segment for segment in path.split("/") if segment]
    while segments[:1] == [VERSION] and segments[1:2] and segments[1] in _VERSIONED | _OTHERS:
        segments = segments[1:]
    if not segments or segments[0] not in _VERSIONED | _OTHERS:
        return path
    if segments[0] in _VERSIONED:
        segments.insert(0, VERSION)
    return "/" + "/".join(segments)
