"""The one translation of errors to what the APIs answer: status, body, headers.

Paths below /v1/messages speak Anthropic's dialect, and so do clients with its header; all others OpenAI's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from omlx.errors import BadRequest, EngineError, NotFound, OmlxError, Overloaded, TooSlow

# Codes that clients of that API look for; any other code goes out as it is.
_OPENAI_CODES = {
    "model.not_found": "model_not_found",
    "engine.prompt_too_long": "context_length_exceeded",
    "auth.key": "invalid_api_key",
}
_MESSAGES: Final = "/v1/messages"
_PROMPTS: Final = {"/v1/completions": "prompt", "/v1/responses": "input"}
"""What is `messages` elsewhere, and to the parts that complain of it, by path."""
_ANTHROPIC: Final = "anthropic-version"
"""Clients of that API send it; some paths are of both dialects."""
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
_TYPES = {401: "authentication_error", 403: "permission_error"}

# pydantic's error types, by how they end or begin, to ours.
_VALIDATION_CODES = {
    "json_invalid": "request.json",
    "missing": "request.missing",
    "too_short": "request.empty",
    "string_too_short": "request.empty",
    "literal_error": "request.value",
    "greater_than": "request.range",
    "greater_than_equal": "request.range",
    "less_than": "request.range",
    "less_than_equal": "request.range",
}
_UNION_TAGS = ("str", "constrained-str")
_SHOWN: Final = 200
"""So many characters of a path are told."""


def openai(error: OmlxError, prompt: str = "messages") -> dict[str, Any]:
    """The error object of OpenAI's API, with our parameters beside it so that a reader of any language can be told.

    `prompt` is the field that the prompt came in.
    """
    return {
        "error": {
            "message": error.message,
            "type": _type(error, _TYPES, "server_error"),
            "param": prompt if error.param == "messages" else error.param,
            "code": _OPENAI_CODES.get(error.code, error.code),
            "params": error.params,
        }
    }


def anthropic(error: OmlxError) -> dict[str, Any]:
    """The error object of Anthropic's API, with our code and parameters beside it."""
    message = error.message
    if error.code == "engine.prompt_too_long":
        message = (
            f"prompt is too long: {error.params['tokens']} tokens > {error.params['limit']} maximum"
        )
    elif error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    kind = _type(error, _ANTHROPIC_TYPES, "api_error")
    told = {"type": kind, "message": message, "code": error.code, "params": error.params}
    if (error.code, error.param) == (
        "request.unsupported",
        "thread",
    ):  # clients then send the whole conversation
        told["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": told, "request_id": None}


def speaks_anthropic(scope: Scope) -> bool:
    path = scope["path"]
    return (
        path == _MESSAGES or path.startswith(f"{_MESSAGES}/") or _ANTHROPIC in Headers(scope=scope)
    )


def response(error: OmlxError, scope: Scope) -> Response:
    """The answer to a request in its dialect."""
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TooSlow):
        headers["Connection"] = "close"
    if speaks_anthropic(scope):
        return JSONResponse(
            anthropic(error), 529 if isinstance(error, Overloaded) else error.status, headers
        )
    return JSONResponse(
        openai(error, _PROMPTS.get(scope["path"], "messages")), error.status, headers
    )


def from_validation(error: ValidationError) -> BadRequest:
    """The first thing that is wrong with a body, naming its field as the client wrote it: `messages[0].role`.

    Where a field may be one of several types, the type that the value came closest to being is the one to speak of.
    """
    found = error.errors(include_url=False)
    told = max((each for each in found if each["loc"][:1] == found[0]["loc"][:1]), key=_closeness)
    field = _field(told)
    code = _VALIDATION_CODES.get(
        told["type"], "request.type" if _mistyped(told) else "request.invalid"
    )
    return BadRequest(code, param=field or None, field=field, detail=told["msg"])


def from_http(error: HTTPException, scope: Scope) -> OmlxError:
    """Routing errors of the framework: an unknown path, a method that the path does not have."""
    path = scope["path"][:_SHOWN]
    if error.status_code == 404:
        return NotFound("http.not_found", path=path)
    translated = BadRequest(
        "http.refused",
        method=scope["method"],
        path=path,
        status=error.status_code,
        detail=error.detail,
    )
    translated.status = error.status_code
    return translated


def unexpected(error: Exception) -> EngineError:
    """A fault of ours. Its text stays in here: it may quote the prompt."""
    return EngineError("server.failed", kind=type(error).__name__)


def _type(error: OmlxError, by_status: Mapping[int, str], fault: str) -> str:
    """In the words of an API that calls what is wrong with us a `fault`."""
    if isinstance(error, Overloaded):
        return "overloaded_error"
    return by_status.get(error.status, "invalid_request_error" if error.status < 500 else fault)


def _closeness(error: ErrorDetails) -> tuple[int, bool]:
    """How far a value was read as a type before that failed."""
    return len(error["loc"]), not _mistyped(error)


def _mistyped(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type")


def _field(error: ErrorDetails) -> str:
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif (
            part not in _UNION_TAGS and "[" not in part and not part[:1].isupper()
        ):  # a model's name
            path += f".{part}" if path else part
    return path
