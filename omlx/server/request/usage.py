"""Token counts, times and progress of requests, as the APIs report them. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote

from omlx.engine.types import PromptForecast, TokenLogprob
from omlx.errors import Reason, optional_reason
from omlx.records import DrafterStats, Gate, RequestStats, sum_drafters
from omlx.server.http.transport import Json
from omlx.text.events import Finish

CONTEXT_LEFT: Final = "X-Omlx-Context-Left"
FALLBACK: Final = "model.fallback"
FALLBACK_HEADER: Final = "X-Omlx-Fallback"

_OF_A_CHOICE: Final = ("id", "settings", "prompt", "answer", "tokens", "kept")
"""Fields of a receipt in which the choices of an answer differ."""


def usage(finishes: Sequence[Finish], prompts: int = 1) -> dict[str, Any]:
    """OpenAI's usage object.

    A prompt and its cached tokens count once, however many choices share it. Image tokens are part
    of the prompt, and named where there are some. With `context_left` of the fullest choice.
    """
    stats = [finish.stats for finish in finishes]
    prompt_n, cached_n = _prompt_tokens(stats, prompts)
    details = {"cached_tokens": cached_n}
    if image_n := sum(first.image_n for first in _firsts(stats, prompts)):
        details["image_tokens"] = image_n
    completion = sum(choice.predicted_n for choice in stats)
    accepted = sum(choice.accepted for choice in stats)
    return {
        "prompt_tokens": prompt_n,
        "completion_tokens": completion,
        "total_tokens": prompt_n + completion,
        "prompt_tokens_details": details,
        "completion_tokens_details": {
            "reasoning_tokens": sum(finish.reasoning_tokens for finish in finishes),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(choice.proposed for choice in stats) - accepted,
        },
        **context(stats),
    }


def context(stats: Sequence[RequestStats]) -> dict[str, int]:
    """Return the context length and the tokens left of it; nothing where that is unknown."""
    left = [choice.context_left for choice in stats if choice.context_left is not None]
    return {"context_length": stats[0].context_n, "context_left": min(left)} if left else {}


def headers(
    context_length: int, prompt_n: int, finishes: Iterable[Finish], warnings: Iterable[Reason]
) -> dict[str, str]:
    """Return the headers of an answer.

    Tokens of the context behind prompt and finished choices; id and reason of a fallback model.
    """
    left = [each.stats.context_left for each in finishes if each.stats.context_left is not None]
    known = {CONTEXT_LEFT: str(min(left, default=max(0, context_length - prompt_n)))}
    for each in warnings:
        if each.code == FALLBACK:
            model = quote(str(each.params["model"]), safe="/:.")
            known[FALLBACK_HEADER] = f"{each.params['code']}; model={model}"
    return known


def timings(finishes: Sequence[Finish], prompts: int = 1) -> dict[str, Any]:
    """Llama-server's `timings`, with statistics by drafter.

    `prompt_n` excludes the `cache_n` cached tokens.

    Of several choices, tokens and drafters add up, times are those of the slowest, and seed and
    speculation are those of the first. Each prompt counts once. `restarts` is there if a failure of
    the device had tokens computed again, `displaced` if more urgent requests took the row.
    """
    stats = [finish.stats for finish in finishes]
    prompt_n, cached_n = _prompt_tokens(stats, prompts)
    prompt_ms = max(choice.prompt_ms for choice in stats)
    predicted_n = sum(choice.predicted_n for choice in stats)
    predicted_ms = max(choice.predicted_ms for choice in stats)
    drafters = sorted(sum_drafters(stats).items())
    restarts = sum(choice.restarts for choice in stats)
    displaced = sum(choice.displaced for choice in stats)
    return {
        "prompt_n": prompt_n - cached_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_second": _per_second(prompt_n - cached_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_second": _per_second(predicted_n, predicted_ms),
        "cache_n": cached_n,
        "draft_n": sum(choice.proposed for choice in stats),
        "draft_n_accepted": sum(choice.accepted for choice in stats),
        "drafters": {name: _drafter(total) for name, total in drafters},
        "seed": stats[0].seed,
        "speculation": _speculation(stats[0]),
        **({"restarts": restarts} if restarts else {}),
        **({"displaced": displaced} if displaced else {}),
    }


def warnings(reasons: Sequence[Reason]) -> dict[str, Any]:
    """The field `warnings` of an answer; nothing if there are none."""
    if not reasons:
        return {}
    return {"warnings": [reason.to_json() for reason in reasons]}


def receipt(finishes: Sequence[Finish]) -> dict[str, Any]:
    """Field `receipt` of an answer: common values of its choices, then hashes of each."""
    receipts = [asdict(finish.receipt) for finish in finishes if finish.receipt is not None]
    if not receipts:
        return {}
    shared = {name: value for name, value in receipts[0].items() if name not in _OF_A_CHOICE}
    choices = [{name: each[name] for name in _OF_A_CHOICE} for each in receipts]
    return {"receipt": {**shared, "choices": choices}}


def gate_record(gate: Gate) -> dict[str, Any]:
    return {"state": gate.state, "reason": optional_reason(gate.reason)}


def _prompt_tokens(stats: Sequence[RequestStats], prompts: int) -> tuple[int, int]:
    """Tokens of all prompts, and how many of them were cached."""
    firsts = _firsts(stats, prompts)
    return sum(first.prompt_n for first in firsts), sum(first.cached_n for first in firsts)


def _firsts(stats: Sequence[RequestStats], prompts: int) -> Sequence[RequestStats]:
    return stats[:: len(stats) // prompts]


def _speculation(stats: RequestStats) -> dict[str, Any]:
    return {
        **stats.speculation.to_json(),
        "strategy": stats.strategy,
        "notes": [note.to_json() for note in stats.strategy_notes],
        "gates": {name: gate_record(gate) for name, gate in stats.gates.items()},
        "speedup": None if stats.steady_speedup is None else round(stats.steady_speedup, 3),
    }


def _drafter(stats: DrafterStats) -> dict[str, Any]:
    times = {"draft_ms": round(stats.draft_ms, 3), "verify_ms": round(stats.verify_ms, 3)}
    return asdict(stats) | times


def _per_second(tokens: int, ms: float) -> float:
    if ms <= 0:
        return 0.0
    return round(tokens / ms * 1000, 2)


_LOWEST_LOGPROB: Final = -9999.0


def finite(logprob: float) -> float:
    """Replace -infinity, which JSON does not have, by the lowest logprob that clients expect."""
    return logprob if logprob > _LOWEST_LOGPROB else _LOWEST_LOGPROB


def logprob_entries(
    entries: Sequence[TokenLogprob], token_bytes: Callable[[int], bytes]
) -> list[Json]:
    def token(id: int, logprob: float) -> Json:
        raw = token_bytes(id)
        text = raw.decode("utf-8", "replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(raw)}

    encoded = []
    for entry in entries:
        top = [token(id, logprob) for id, logprob in entry.top]
        encoded.append(token(entry.token, entry.logprob) | {"top_logprobs": top})
    return encoded


MIN_TOKENS: Final = 512
"""Tokens — shorter prompts, of a single pass, have no forecast and no progress."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a prompt: tokens computed or restored. `seconds_left` None: not known."""

    done: int
    total: int
    seconds_left: float | None

    def to_json(self) -> dict[str, Any]:
        left = self.seconds_left
        return {
            "processed": self.done,
            "total": self.total,
            "share": round(self.done / self.total, 4),
            "seconds_left": None if left is None else round(left, 1),
        }

    def comment(self) -> bytes:
        """Return a comment of a stream of server-sent events."""
        return b": prompt_progress " + json.dumps(self.to_json()).encode() + b"\n\n"


def with_forecast(payloads: list[Json], progress: Progress | None) -> list[Json]:
    """Add the forecast of a long prompt to the first payload of a stream, if there is one."""
    if payloads and progress is not None:
        payloads[0] = payloads[0] | {"timings": {"prompt_progress": progress.to_json()}}
    return payloads


@dataclass(slots=True)
class Reading:
    """Times of a prompt, in monotonic seconds, and the forecast once known."""

    forecast: PromptForecast | None = None
    _first: tuple[float, int] | None = None
    _last: tuple[float, int] = (0.0, 0)

    def note(self, done: int, now: float) -> None:
        """Record `done` computed tokens."""
        if self._first is None:
            self._first = now, done
        self._last = now, done

    def progress(self, total: int, now: float, arrived_at: float) -> Progress:
        """Return the progress: by the pace since the first pass, before by the forecast."""
        at, done = self._last
        left = None
        if self._first is not None and done > self._first[1]:
            pace_s = (at - self._first[0]) / (done - self._first[1])
            left = max(0.0, pace_s * (total - done) - (now - at))
        elif self.forecast is not None:
            done, cached = max(done, self.forecast.cached), self.forecast.cached
            if (seconds := self.forecast.first_token_s) is not None:
                left = max(0.0, seconds - (now - arrived_at))
                if done > cached:  # after the first pass
                    left = seconds * (total - done) / (total - cached)
        return Progress(min(done, total), total, left)
