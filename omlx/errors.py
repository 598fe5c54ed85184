"""Every error of omlx, as one tree; and reasons, which are codes without being errors.

    OmlxError                     code + typed parameters; the sentence is made from the catalog
    ├── BadRequest                what the client sent is wrong (400)
    │   ├── NotFound              it names something that is not here (404)
    │   ├── Unauthorized          no key, or a wrong one (401)
    │   ├── Forbidden             Host or Origin not allowed (403)
    │   ├── Conflict              it is not the moment: something else is under way (409)
    │   ├── Outdated              somebody else has changed it meanwhile (412)
    │   ├── Unconditional         it does not say which state it would change (428)
    │   ├── TooLarge              the body is longer than the server takes (413)
    │   └── TooSlow               the request has stopped coming (408)
    ├── Overloaded                the queue is full, or the server is draining (503, Retry-After)
    │   └── TooManyAttempts       too many wrong passwords (429, Retry-After)
    ├── ConfigError               a flag, variable or file is wrong; the process does not start (exit 2)
    ├── ModelError                a model directory cannot be loaded (400 to clients: naming what is wrong)
    └── EngineError               a step failed; ends the request it belongs to (500)
        ├── RewindError           a cache could not be taken back; its content is unproven
        └── EngineDead            the engine thread is gone (503)

A code is stable and dotted (`request.temperature.range`); parameters are JSON values. `message`
renders the English sentence from `locales/en.json`; other languages render the same code and
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from omlx.catalog import sentence

Param: TypeAlias = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Reason:
    """A stable code with typed parameters: why something is as it is (`spec.off.requested`). Not an
    error.
    """

    code: str
    params: dict[str, Param] = field(default_factory=dict)

    @property
    def message(self) -> str:
        return sentence(self.code, self.params)


class OmlxError(Exception):
    """An error with a stable code. `param` names the request field at fault, if any."""

    status = 500

    def __init__(self, code: str, /, *, param: str | None = None, **params: Param) -> None:
        self.code = code
        self.param = param
        self.params = params
        super().__init__(code, params)

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


class Unconditional(BadRequest):
    status = 428


class Overloaded(OmlxError):
    """`retry_after_s` is what the Retry-After header says, in seconds."""

    status = 503

    def __init__(
        self, code: str, /, *, param: str | None = None, retry_after_s: int = 1, **params: Param
    ) -> None:
        super().__init__(code, param=param, **params)
        self.retry_after_s = retry_after_s


class TooManyAttempts(Overloaded):
    status = 429


class ConfigError(OmlxError):
    status = 500


class ModelError(OmlxError):
    status = 400


class EngineError(OmlxError):
    status = 500


class RewindError(EngineError):
    pass


class EngineDead(EngineError):
    status = 503
