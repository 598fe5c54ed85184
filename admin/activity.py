"""Pages of requests, log and statistics, and the API of requests.

**Time saved by drafts**: for each answer with drafts, decode time × (speed-up - 1). **Time saved by
prefixes**: cached prompt tokens × the model's seconds per computed prompt token, measured in
requests with mostly computed prompts.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from omlx.errors import NotFound
from omlx.server.http.transport import while_connected
from omlx.server.request.fields import Body
from omlx.server.services import Services
from omlx.telemetry.log import LEVELS, LogLine, read_tail
from omlx.telemetry.usage import KEPT_DAYS, Sums, Timeline, Usage

from .views import (
    AnswerView,
    LoadingView,
    RequestDetail,
    Requests,
    RequestView,
    conversation,
    request_detail,
)
from .web.addresses import ACTIVITY, LOG, PARTS, STATISTICS
from .web.formats import moment
from .web.pages import Pages, page

MAX_ANSWERS: Final = 200
FIRST_ANSWERS: Final = 20
"""Answers in the page itself, for a fast first view; the refreshed part has all."""

MAX_LINES: Final = 300
SHOWN_LEVELS: Final = ("debug", "info", "warning", "error")
_MAX_TEXT: Final = 200

RANGES: Final = (7, 30, 90, 365)
"""Days — choices of the page."""

HOURS: Final = (1, 24)
"""Hours — choices of the charts of throughput and memory."""

BARS: Final = 60

_Pace: TypeAlias = Mapping[str, float]
"""Seconds per computed prompt token, by model; unmeasured models are missing."""


@dataclass(frozen=True, slots=True)
class ActiveView:
    requests: Sequence[RequestView]
    loading: Sequence[LoadingView]


@dataclass(frozen=True, slots=True)
class EndedView:
    """`kept`: ids of the answers with a receipt, which can be verified."""

    answers: Sequence[AnswerView]
    kept: frozenset[str]

    @property
    def after_tool_s(self) -> float | None:
        """Median time to first token after the result of a tool; None without any."""
        times = [
            answer.first_token_s
            for answer in self.answers
            if answer.after_tool and answer.first_token_s is not None
        ]
        return median(times) if times else None


@dataclass(frozen=True, slots=True)
class ActivityView:
    """`ended` has at most `first_answers`; the refreshed part has more."""

    active: ActiveView
    ended: EndedView
    first_answers: int = FIRST_ANSWERS


@dataclass(frozen=True, slots=True)
class ActivityPage:
    """Requests, log and statistics, each with its parts; stop and verify in the API."""

    services: Services
    requests: Requests
    home: Path

    def register(self, pages: Pages, api: APIRouter) -> None:
        part = f"{PARTS}/activity"
        pages.route(ACTIVITY, page("activity/page.html", self._first, "activity"))
        pages.part(f"{part}/active", page("activity/active_part.html", self._active))
        pages.part(f"{part}/ended", page("activity/ended_part.html", self._all_ended))
        one = "{number:int}"
        pages.route(
            f"{ACTIVITY}/requests/{one}",
            page("activity/request_page.html", self._request, "activity"),
        )
        pages.part(f"{part}/request/{one}", page("activity/request.html", self._request))
        pages.route(LOG, page("activity/log_page.html", self._log, "activity"))
        pages.part(f"{part}/log", page("activity/log.html", self._log))
        pages.route(STATISTICS, page("activity/statistics_page.html", self._usage, "activity"))
        pages.part(f"{part}/statistics", page("activity/statistics.html", self._usage))
        pages.part(f"{part}/history", page("activity/history.html", self._history))
        api.add_api_route("/requests/{id}/stop", self.stop, methods=["POST"])
        api.add_api_route("/requests/{id}/verify", self.verify, methods=["POST"])
        api.add_api_route(f"/requests/{one}/conversation", self.conversation, methods=["GET"])
        api.add_api_route("/statistics", self.statistics, methods=["GET"])

    async def stop(self, request: Request, id: str) -> Response:
        """Stop a response; the client receives an error. Raises NotFound if already ended."""
        self.services.generations.stop(id)
        return Response(status_code=204)

    async def verify(self, request: Request, id: str) -> Response:
        """Decode a kept answer again, as `omlx verify`, between the passes of running requests.

        Ends if the browser disconnects. Raises as `Verifier.verify_answer`.
        """
        await request.body()
        work = self.services.verifier.verify_answer(id)
        verdicts = await while_connected(request.receive, work)
        same = all(verdict.same for verdict in verdicts)
        return JSONResponse({"same": same, "choices": [verdict.record() for verdict in verdicts]})

    async def conversation(self, number: int) -> Response:
        """Return a kept request as a conversation. Raises NotFound unless its texts are kept."""
        ended = self.services.activity.outcome(number)
        kept = None if ended is None else conversation(ended)
        if kept is None:
            raise NotFound("request.forgotten")
        return JSONResponse(kept)

    async def statistics(self, request: Request) -> Response:
        return JSONResponse(statistics_record(await self._usage(request)))

    async def _first(self, request: Request) -> ActivityView:
        return ActivityView(await self._active(request), await self._ended(FIRST_ANSWERS))

    async def _active(self, request: Request) -> ActiveView:
        return ActiveView(self.requests.active(), self.requests.loading())

    async def _all_ended(self, request: Request) -> EndedView:
        return await self._ended(MAX_ANSWERS)

    async def _ended(self, count: int) -> EndedView:
        answers = self.requests.latest(count)
        ids = [answer.id for answer in answers if answer.id is not None]
        return EndedView(answers, await self.services.verifier.kept(ids))

    async def _request(self, request: Request) -> RequestDetail:
        """Raises NotFound for a request that is no longer among the newest."""
        ended = self.services.activity.outcome(request.path_params["number"])
        if ended is None:
            raise NotFound("request.forgotten")
        return request_detail(ended)

    async def _log(self, request: Request) -> LogView:
        level, text = request.query_params.get("level"), request.query_params.get("text", "")
        if level not in LEVELS:
            level = SHOWN_LEVELS[0]
        return await asyncio.to_thread(log_view, self.home, level, text[:_MAX_TEXT])

    async def _history(self, request: Request) -> HistoryView:
        query = StatisticsQuery.of_query(request.query_params)
        return history_view(self.services.activity.minutes, query.hours, time.time())

    async def _usage(self, request: Request) -> StatisticsView:
        days = StatisticsQuery.of_query(request.query_params).days
        sums = await asyncio.to_thread(self.services.activity.history.sums, days)
        view = statistics_view(sums, days, date.today())
        return replace(view, history=await self._history(request))


@dataclass(frozen=True, slots=True)
class LogView:
    """Newest matching lines. `missing`: no readable file."""

    lines: Sequence[LogLine]
    level: str
    text: str
    missing: bool = False
    levels: Sequence[str] = SHOWN_LEVELS


def log_view(home: Path, level: str, text: str) -> LogView:
    """Read the log. Blocks on a file."""
    try:
        lines = read_tail(home)
    except OSError:
        return LogView((), level, text, missing=True)
    matching = (line for line in lines if line.matches(level, text))
    return LogView(tuple(islice(matching, MAX_LINES)), level, text)


class StatisticsQuery(Body):
    """Number of days, today included, and hours of the charts of throughput and memory."""

    days: Annotated[int, Field(ge=1, le=KEPT_DAYS)] = 30
    hours: Annotated[int, Field(ge=1, le=HOURS[-1])] = HOURS[0]


def statistics_record(view: StatisticsView) -> dict[str, Any]:
    """Return the view as JSON, each table in lines with a `name`."""
    record: dict[str, Any] = {"days": view.days, "total": _record(view.total)}
    lines = {"by_day": view.by_day, "by_model": view.by_model, "by_key": view.by_key}
    for name, part in lines.items():
        record[name] = [{"name": line.name, **_record(line)} for line in part]
    return record


def _record(line: UsageLine) -> dict[str, Any]:
    return {**asdict(line.usage), "prefix_saved_s": line.prefix_saved_s}


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Usage of a day, a model or a key.

    `prefix_saved_s` is 0 without cached tokens, None without a measured prefill time.
    """

    name: str
    usage: Usage
    prefix_saved_s: float | None

    @property
    def cached_share(self) -> float | None:
        if not self.usage.prompt:
            return None
        return self.usage.cached / self.usage.prompt

    @property
    def saved_s(self) -> float:
        """Seconds saved by drafts and prefixes; negative if drafts cost more."""
        return self.usage.draft_saved_s + (self.prefix_saved_s or 0.0)


@dataclass(frozen=True, slots=True)
class Bar:
    """A day of a chart, from `top` over `height`, both shares of the chart's height."""

    day: str
    value: float
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class StatisticsView:
    """`days` days up to today; `by_day` holds days with requests, newest first."""

    days: int
    total: UsageLine
    by_day: Sequence[UsageLine]
    by_model: Sequence[UsageLine]
    by_key: Sequence[UsageLine]
    tokens: Sequence[Bar]
    saved: Sequence[Bar]
    ranges: Sequence[int] = RANGES
    history: HistoryView | None = None


@dataclass(frozen=True, slots=True)
class HistoryView:
    """Bars of throughput in tokens per second, and of the most bytes in use.

    `heat`: share of the minutes slowed down by heat; empty where heat is not known.
    """

    hours: int
    rate: Sequence[Bar]
    memory: Sequence[Bar]
    heat: Sequence[Bar] = ()
    choices: Sequence[int] = HOURS


def history_view(minutes: Timeline, hours: int, now: float) -> HistoryView:
    """Return `BARS` bars up to the minute of `now`."""
    intervals = minutes.intervals(3600 * hours // BARS, BARS, now)
    names = [moment(interval.at) for interval in intervals]
    heat = [interval.throttled for interval in intervals]
    return HistoryView(
        hours,
        rate=_bars(names, [interval.rate for interval in intervals]),
        memory=_bars(names, [interval.used_bytes for interval in intervals]),
        heat=_bars(names, [share or 0.0 for share in heat]) if heat.count(None) < BARS else (),
    )


def statistics_view(sums: Sums, days: int, today: date) -> StatisticsView:
    pace = _pace(sums)
    by_day = _lines(sums, 0, pace)
    by_name = {line.name: line for line in by_day}
    names = [(today - timedelta(days=back)).isoformat() for back in reversed(range(days))]
    nothing = UsageLine("", Usage(), 0.0)
    lines = [by_name.get(name, nothing) for name in names]
    return StatisticsView(
        days=days,
        total=_line("", sums, pace),
        by_day=by_day[::-1],
        by_model=_largest_first(_lines(sums, 1, pace)),
        by_key=_largest_first(_lines(sums, 2, pace)),
        tokens=_bars(names, [line.usage.predicted for line in lines]),
        saved=_bars(names, [line.saved_s for line in lines]),
    )


def _pace(sums: Sums) -> _Pace:
    measured: defaultdict[str, Usage] = defaultdict(Usage)
    for (_, model, _), usage in sums.items():
        measured[model] += usage
    return {
        model: usage.measured_s / usage.measured_n
        for model, usage in measured.items()
        if usage.measured_n
    }


def _lines(sums: Sums, place: int, pace: _Pace) -> list[UsageLine]:
    """Return a line for each day (`place` 0), model (1) or key (2), in order."""
    parts: defaultdict[str, dict[tuple[str, str, str], Usage]] = defaultdict(dict)
    for name, usage in sums.items():
        parts[name[place]][name] = usage
    return [_line(name, part, pace) for name, part in sorted(parts.items())]


def _line(name: str, sums: Sums, pace: _Pace) -> UsageLine:
    total = sum(sums.values(), Usage())
    cached = {model for (_, model, _), usage in sums.items() if usage.cached}
    saved = [usage.cached * pace.get(model, 0.0) for (_, model, _), usage in sums.items()]
    known = not cached or not cached.isdisjoint(pace)
    return UsageLine(name, total, sum(saved) if known else None)


def _largest_first(lines: Iterable[UsageLine]) -> list[UsageLine]:
    return sorted(lines, key=lambda line: -(line.usage.prompt + line.usage.predicted))


def _bars(days: Sequence[str], values: Sequence[float]) -> Sequence[Bar]:
    """Return a bar for each day, from zero up, or down if negative."""
    most, least = max(0.0, *values), min(0.0, *values)
    scale = (most - least) or 1
    return [
        Bar(day, value, (most - max(0.0, value)) / scale, abs(value) / scale)
        for day, value in zip(days, values, strict=True)
    ]
