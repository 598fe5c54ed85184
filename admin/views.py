"""Active and ended requests as plain data; of an ended request, timeline, drafters, settings.

Times in seconds, rates in tokens per second, shares between 0 and 1; None: not known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlx.clients.apps import client_name
from omlx.errors import Reason
from omlx.models.pool.served import State
from omlx.records import AppliedSetting, DrafterStats
from omlx.server.request.activity import CLIENT_GONE, OK, AnswerText, Outcome, Running
from omlx.server.request.generation_request import MAX_CHARACTERS, SAMPLING
from omlx.server.services import Services

MIN_RATE_TOKENS: Final = 16
"""Output tokens — fewer give no rate: a single pass may commit several, in a time near 0."""

MIN_PROPOSED_TOKENS: Final = 8
"""Proposed tokens — fewer give no acceptance rate, and no speed-up either."""

CUT_SHORT: Final = "length"
"""Finish reason of an answer that reached its token limit."""

WAITING, READING, WRITING = "waiting", "reading", "writing"


@dataclass(frozen=True, slots=True)
class Requests:
    services: Services

    def active(self) -> Sequence[RequestView]:
        engine, pool = self.services.engine, self.services.pool
        served = [model.id for model in pool.loaded]
        queued = {model: engine.request_counts(model).waiting for model in served}
        activity = self.services.activity
        return request_views(activity.running, queued, activity.clock())

    def loading(self) -> Sequence[LoadingView]:
        """Return the models that are loading, or that requests wait for."""
        pool = self.services.pool
        statuses = [(entry.id, pool.status(entry.id)) for entry in pool.models]
        views = []
        for model, status in statuses:
            if status.state is State.LOADING or status.waiting:
                progress = status.progress
                share = progress.done / progress.total if progress and progress.total else None
                views.append(LoadingView(model, share, status.waiting))
        return views

    def latest(self, count: int) -> Sequence[AnswerView]:
        """Return the latest ended requests, newest first, of any age."""
        ended = self.services.activity.outcomes()[-count:]
        return [answer_view(outcome) for outcome in reversed(ended)]


@dataclass(frozen=True, slots=True)
class RequestView:
    """An active request; `read` of `prompt` tokens are computed or restored.

    `drafted` of `tokens` were accepted draft tokens. `group`: id of the response; `key`: name of
    the API key. `left_s`: seconds to the first token; `guess`: code of a guessed priority.
    """

    id: str
    model: str
    phase: str
    prompt: int
    read: int
    tokens: int
    drafted: int
    rate: float | None
    group: str
    client: str
    key: str
    left_s: float | None = None
    guess: str | None = None


@dataclass(frozen=True, slots=True)
class LoadingView:
    """A loading model with `waiting` requests. `share` of the weights is read; None: not known."""

    model: str
    share: float | None
    waiting: int


@dataclass(frozen=True, slots=True)
class AnswerView:
    """An ended request. `outcome`: a catalog code, why it failed or whether speculation ran.

    `path`: URL path of a request that never reached the engine. `number` is unique among ended
    requests; `id` is the response's.
    """

    at: float
    status: int
    seconds: float
    model: str | None
    path: str | None
    prompt: int | None
    cached: int | None
    tokens: int
    first_token_s: float | None
    rate: float | None
    acceptance: float | None
    speedup: float | None
    outcome: str
    params: Mapping[str, object]
    number: int
    id: str | None
    client: str
    key: str
    finish: str | None
    prompt_text: str | None
    is_failure: bool
    after_tool: bool = False

    @property
    def started(self) -> float:
        """Arrival in seconds since the epoch."""
        return self.at - self.seconds

    @property
    def state(self) -> str:
        """A key below `ui.status.`."""
        if self.finish == CUT_SHORT:
            return "length"
        if self.is_failure:
            return "failed"
        return "cancelled" if self.status == CLIENT_GONE else "ok"

    @property
    def cached_share(self) -> float | None:
        """Share of the prompt that came from the prefix cache."""
        if not self.prompt or self.cached is None:
            return None
        return self.cached / self.prompt

    @property
    def search(self) -> str:
        parts: tuple[object, ...] = (self.id, self.model, self.path, self.client, self.key)
        parts += (self.outcome, *self.params.values())
        return " ".join(str(part) for part in parts if part is not None).lower()


def request_views(
    running: Sequence[Running], queued: Mapping[str, int], now: float = 0.0
) -> Sequence[RequestView]:
    """Return the views. `queued`: length of the engine's queue by model; `now`: monotonic seconds.

    Among requests without an event, the last ones are those in the queue.
    """
    silent: defaultdict[str, list[str]] = defaultdict(list)
    for request in running:
        if not request.started:
            silent[request.model].append(request.id)
    waiting: set[str] = set()
    for model, ids in silent.items():
        waiting.update(ids[max(0, len(ids) - queued.get(model, 0)) :])
    return [_request_view(request, request.id in waiting, now) for request in running]


def answer_view(ended: Outcome) -> AnswerView:
    rate = acceptance = speedup = cached = None
    usual = "ui.answers.cancelled" if ended.status == CLIENT_GONE else "ui.answers.other"
    reason = ended.error or Reason(usual)  # of a request that was not generated to its end
    if ended.stats is not None:
        stats, cached = ended.stats, ended.stats.cached_n
        if stats.predicted_ms and stats.predicted_n >= MIN_RATE_TOKENS:
            # The clock starts with the first token.
            rate = 1000 * (stats.predicted_n - 1) / stats.predicted_ms
        if stats.proposed >= MIN_PROPOSED_TOKENS:
            acceptance, speedup = stats.acceptance_rate, stats.steady_speedup
        if ended.status == OK:
            reason = stats.speculation
    return AnswerView(
        at=ended.at,
        status=ended.status,
        seconds=ended.seconds,
        model=ended.model,
        path=ended.path,
        prompt=ended.prompt,
        cached=cached,
        tokens=ended.tokens,
        first_token_s=ended.first_token_s,
        rate=rate,
        acceptance=acceptance,
        speedup=speedup,
        outcome=reason.code,
        params=reason.params,
        number=ended.number,
        id=ended.id,
        client=client_name(ended.arrival.caller.client),
        key=ended.arrival.caller.key,
        finish=ended.finish,
        prompt_text=ended.prompt_text,
        is_failure=ended.failed,
        after_tool=ended.arrival.after_tool,
    )


def _request_view(request: Running, waiting: bool, now: float) -> RequestView:
    phase = WAITING if waiting else WRITING if request.tokens else READING
    return RequestView(
        id=request.id,
        model=request.model,
        phase=phase,
        prompt=request.prompt,
        read=request.read,
        tokens=request.tokens,
        drafted=request.drafted,
        rate=request.rate,
        group=request.group,
        client=client_name(request.arrival.caller.client),
        key=request.arrival.caller.key,
        left_s=request.progress(now).seconds_left if phase == READING else None,
        guess=None if request.arrival.guess is None else request.arrival.guess.code,
    )


MIN_PHASE_S = 0.0005
"""Seconds — shorter phases are left out: they would read as 0 ms."""

_INSTRUCTIONS: Final = ("system", "developer")
_FIELDS: Final = {**{name: name for name in SAMPLING}, "seed": "seed", "max_tokens": "maxTokens"}
"""Fields of the chat page's settings, by setting."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase from `left` over `share`, both parts of the whole; `name` ends `ui.request.phase.`"""

    name: str
    seconds: float
    left: float
    share: float


@dataclass(frozen=True, slots=True)
class RequestDetail:
    """`drafters`: those that proposed something. `answer_text` is None unless texts are kept.

    `is_cut`: the beginning of the prompt was too long to keep.
    """

    answer: AnswerView
    phases: Sequence[Phase]
    drafters: Mapping[str, DrafterStats]
    settings: Sequence[AppliedSetting]
    strategy: str | None
    answer_text: str | None
    is_cut: bool = False


def request_detail(ended: Outcome) -> RequestDetail:
    stats = ended.stats
    drafters = {} if stats is None else stats.drafters
    return RequestDetail(
        answer=answer_view(ended),
        phases=phases(ended),
        drafters={name: each for name, each in drafters.items() if each.proposed},
        settings=ended.arrival.settings,
        strategy=None if stats is None else stats.strategy,
        answer_text=None if ended.answer is None else str(ended.answer),
        is_cut=sum(len(part.text) for part in ended.arrival.prompt or ()) >= MAX_CHARACTERS,
    )


def conversation(ended: Outcome) -> dict[str, Any] | None:
    """Return prompt, settings and answer in the format of the chat page's exports.

    None unless texts are kept. Tool results become questions; images are left out.
    """
    texts = ended.arrival.prompt
    if not texts:
        return None
    turns = [turn for turn in texts if turn.role not in _INSTRUCTIONS]
    messages: list[dict[str, Any]] = [
        {"role": "assistant" if turn.role == "assistant" else "user", "text": turn.text}
        for turn in turns
    ]
    answer = ended.answer or AnswerText()
    written = {"text": answer.text, "reasoning": answer.reasoning}
    status = "done" if ended.finish is not None else "stopped"
    messages.append({"role": "assistant", "model": ended.model, "status": status, **written})
    known = [each for each in ended.arrival.settings if each.name in _FIELDS]
    settings = {_FIELDS[each.name]: each.value for each in known}
    system = "\n\n".join(turn.text for turn in texts if turn.role in _INSTRUCTIONS)
    settings |= {"model": ended.model or "", "system": system}
    if "seed" in settings:
        messages[-1]["seed"] = int(settings["seed"])
    numbered = [{"id": at, "parent": at - 1} | each for at, each in enumerate(messages)]
    return {
        "format": "omlx-conversations",
        "version": 1,
        "conversations": [{"settings": settings, "messages": numbered}],
    }


def phases(ended: Outcome) -> list[Phase]:
    """Return the phases in order; they add up to the duration."""
    stats, known = ended.stats, [("loading", ended.arrival.load_s)]
    if stats is not None:
        times = {"queue": stats.queue_ms, "prefill": stats.prompt_ms, "decode": stats.predicted_ms}
        known += [(name, ms / 1000) for name, ms in times.items()]
    rest = ended.seconds - sum(seconds for _, seconds in known)
    known.insert(1, ("preparing", max(0.0, rest)))
    total = sum(seconds for _, seconds in known) or 1.0
    found, left = [], 0.0
    for name, seconds in known:
        if seconds >= MIN_PHASE_S:
            found.append(Phase(name, seconds, left / total, seconds / total))
            left += seconds
    return found
