"""All errors of omlx as a tree; and reasons, which are codes without being errors.

    OmlxError                     code + typed parameters; the catalog has the sentence
    ├── BadRequest                the client's request is invalid (400)
    │   ├── NotFound              a named resource does not exist (404)
    │   ├── Unauthorized          no API key, or a wrong one (401)
    │   ├── Forbidden             Host or Origin not allowed (403)
    │   ├── Conflict              a conflicting operation is in progress (409)
    │   ├── Outdated              the resource has changed in the meantime (412)
    │   ├── Stopped               the request was stopped in the dashboard (499)
    │   ├── Unconditional         a change without the revision that it changes (428)
    │   ├── TooLarge              the body is too long (413)
    │   └── TooSlow               the request has stalled (408)
    ├── Overloaded                the queue is full, or the server drains (503, Retry-After)
    │   ├── DeviceFull            out of device memory, twice (503, not to be repeated)
    │   └── TooManyRequests       too many wrong passwords, or over a rate (429, Retry-After)
    ├── TimedOut                  the request took longer than its own limit (504)
    ├── ToolFailed                a server of tools does not start, answer or work (502)
    ├── ConfigError               an invalid flag, variable or file; prevents a start (exit 2)
    ├── ModelError                a model directory cannot be loaded (400)
    │   ├── ModelGone             the model has been deleted or renamed (404)
    │   └── ProbeFailed           the weights load, but a pass fails or computes NaN (400)
    ├── StageError                a stage cannot join, or refuses to (503)
    └── EngineError               a step has failed and ends its request (500)
        ├── RewindError           a rollback has failed: the content of the cache is unknown
        ├── NonFiniteLogits       NaN or infinity in the logits: damaged weights, a device fault
        └── EngineDead            the engine thread has ended (503)
            └── StageLost         a stage of a model over several machines has gone (503)

A code is stable and dotted (`request.temperature.range`), parameters are JSON values. `message`
is the English sentence; other languages render the same code and parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from omlx.catalog import sentence

Param: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Reason:
    """Stable code and typed parameters of a reason (`spec.off.requested`). Not an error."""

    code: str
    params: dict[str, Param] = field(default_factory=dict)

    @property
    def message(self) -> str:
        return sentence(self.code, self.params)

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "params": self.params, "message": self.message}


def optional_reason(reason: Reason | None) -> dict[str, Any] | None:
    return None if reason is None else reason.to_json()


def one_line(error: Exception | None) -> str:
    """Return type and text of an error in one line of at most 400 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


class OmlxError(Exception):
    """Error with a stable code. `param` names the invalid request field, if any."""

    status = 500

    def __init__(self, code: str, /, *, param: str | None = None, **params: Param) -> None:
        self.code = code
        self.param = param
        self.params = params
        super().__init__(code, params)

    @property
    def reason(self) -> Reason:
        return Reason(self.code, self.params)

    @property
    def message(self) -> str:
        return sentence(self.code, self.params)

    def __str__(self) -> str:
        return self.message


class BadRequest(OmlxError):
    status = 400


class NotFound(BadRequest):
    status = 404


class Unauthorized(BadRequest):
    status = 401


class Forbidden(BadRequest):
    status = 403


class TooLarge(BadRequest):
    status = 413


class TooSlow(BadRequest):
    status = 408


class Conflict(BadRequest):
    status = 409


class Outdated(BadRequest):
    status = 412


class Stopped(BadRequest):
    status = 499


class Unconditional(BadRequest):
    status = 428


class Overloaded(OmlxError):
    """Temporary overload; `retry_after_s` is the value of the Retry-After header in seconds."""

    status = 503

    def __init__(
        self, code: str, /, *, param: str | None = None, retry_after_s: int = 1, **params: Param
    ) -> None:
        super().__init__(code, param=param, **params)
        self.retry_after_s = retry_after_s


class TooManyRequests(Overloaded):
    status = 429


class DeviceFull(Overloaded):
    """Out of memory on the device, after a second try in smaller chunks.

    Clients that retry failed requests must not retry this one.
    """


class TimedOut(OmlxError):
    """End of a request at the requested time limit; clients must not retry by themselves."""

    status = 504


class ToolFailed(OmlxError):
    status = 502


class ConfigError(OmlxError):
    status = 500


class ModelError(OmlxError):
    status = 400


class ModelGone(ModelError):
    status = 404


class ProbeFailed(ModelError):
    pass


class StageError(OmlxError):
    status = 503


class EngineError(OmlxError):
    status = 500


class RewindError(EngineError):
    pass


class NonFiniteLogits(EngineError):
    pass


class EngineDead(EngineError):
    status = 503


class StageLost(EngineDead):
    """Loss of a stage, which ends the group; a supervisor starts the stage again."""


@contextmanager
def os_errors(kind: type[OmlxError], code: str, **params: Param) -> Iterator[None]:
    """Turn an OSError into an error of `kind`; `detail` is the system's text."""
    try:
        yield
    except BrokenPipeError:  # of a reader that has gone
        raise
    except OSError as error:
        raise kind(code, param=None, **params, detail=error.strerror or str(error)) from error
