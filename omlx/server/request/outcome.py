"""How requests of the API ended: answered, cancelled, failed or refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from omlx.errors import OmlxError, Reason
from omlx.records import RequestStats
from omlx.server.http.caller import Caller

OK: Final = 200
CLIENT_GONE: Final = 499
"""Status of a request whose client disconnected before its response was complete."""

_SHOWN: Final = 200
"""Characters of a text that an error repeats and a record keeps."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that ended `at` seconds since the epoch, `seconds` after it arrived.

    One that the engine ran has a `model` and the length of its `prompt`; if it was refused before,
    `path` is its address. `first_token_s` is the time to first token. `error` says why it failed;
    it may hold names from the request, and no text of prompt or output. `id` is that of the
    response, `number` unique in this process, `finish` the finish reason of a complete answer.
    `prompt_text` is the end of the prompt's text, where a setting allows to keep it.
    """

    at: float
    status: int
    seconds: float
    model: str | None = None
    path: str | None = None
    prompt: int | None = None
    tokens: int = 0
    first_token_s: float | None = None
    stats: RequestStats | None = None
    error: Reason | None = None
    number: int = 0
    id: str | None = None
    caller: Caller = field(default_factory=Caller)
    finish: str | None = None
    prompt_text: str | None = None


def bounded_reason(error: OmlxError) -> Reason:
    """Return an error as a reason whose texts have a bounded length."""
    params = dict(error.params)
    for name, value in params.items():
        if isinstance(value, str):
            params[name] = value[:_SHOWN]
    return Reason(error.code, params)
