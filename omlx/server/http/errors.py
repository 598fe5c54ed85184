"""Errors as HTTP responses: status, body, headers. The only place where errors meet HTTP.

Paths below /v1/messages speak Anthropic's dialect, and so do clients with its header; those below
/api Ollama's; all others OpenAI's, with Cohere's `message` where documents are ranked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from omlx.errors import (
    BadRequest,
    DeviceFull,
    EngineError,
    NotFound,
    OmlxError,
    Overloaded,
    Param,
    TimedOut,
    TooSlow,
)

_OPENAI_CODES: Final = {
    "model.not_found": "model_not_found",
    "model.similar": "model_not_found",
    "model.no_profile": "model_not_found",
    "model.folder_missing": "model_not_found",
    "model.not_allowed": "model_not_found",
    "engine.prompt_too_long": "context_length_exceeded",
    "text.too_long": "context_length_exceeded",
    "embedding.too_long": "context_length_exceeded",
    "rerank.too_long": "context_length_exceeded",
    "auth.key": "invalid_api_key",
    "auth.rate": "rate_limit_exceeded",
}
"""Codes that clients of OpenAI's API test for; any other code is sent unchanged."""
_MESSAGES: Final = "/v1/messages"
_OLLAMA: Final = "/api/"
_RERANK: Final = "/rerank"
_PROMPTS: Final = {"/v1/completions": "prompt", "/v1/responses": "input"}
"""The name of the field called `messages` in other dialects and in our errors, by path."""
_ANTHROPIC: Final = "anthropic-version"
"""A header that clients of Anthropic's API send; some paths serve both dialects."""
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_SHOWN: Final = 200
"""Characters of an unknown path that an error repeats."""


def field_error(code: str, field: str, **params: Param) -> BadRequest:
    """Error about a field of the request, named in the message."""
    return BadRequest(code, param=field, field=field, **params)


def openai(error: OmlxError, prompt: str = "messages") -> dict[str, Any]:
    """The error object of OpenAI's API, with our code and parameters so that clients can translate
    the message.

    `prompt` is the name of the request field that held the prompt.
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
    """The error object of Anthropic's API, with our code and parameters."""
    message = error.message
    if error.code in ("engine.prompt_too_long", "text.too_long"):
        message = (
            f"prompt is too long: {error.params['tokens']} tokens > {error.params['limit']} maximum"
        )
    elif error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    kind = _type(error, _ANTHROPIC_TYPES, "api_error")
    body = {"type": kind, "message": message, "code": error.code, "params": error.params}
    if error.code == "request.unsupported" and error.param == "thread":
        # Clients then send the whole conversation.
        body["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": body, "request_id": None}


def ollama(error: OmlxError) -> dict[str, Any]:
    """The error of Ollama's API, a text, with our code and parameters beside it."""
    return {"error": error.message, "code": error.code, "params": error.params}


def speaks_anthropic(scope: Scope) -> bool:
    path = scope["path"]
    return (
        path == _MESSAGES or path.startswith(f"{_MESSAGES}/") or _ANTHROPIC in Headers(scope=scope)
    )


def response(error: OmlxError, scope: Scope) -> Response:
    """The response to a failed request, in its dialect."""
    headers = {}
    if isinstance(error, Overloaded):
        headers["Retry-After"] = str(error.retry_after_s)
    if isinstance(error, DeviceFull | TimedOut):
        headers["x-should-retry"] = "false"  # read by the SDKs of OpenAI and Anthropic
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TooSlow):
        headers["Connection"] = "close"
    if speaks_anthropic(scope):
        status = error.status
        if status == Overloaded.status and isinstance(error, Overloaded):
            status = 529
        return JSONResponse(anthropic(error), status, headers)
    if scope["path"].startswith(_OLLAMA):
        return JSONResponse(ollama(error), error.status, headers)
    prompt = _PROMPTS.get(scope["path"], "messages")
    body = openai(error, prompt)
    if scope["path"].endswith(_RERANK):
        body["message"] = error.message
    return JSONResponse(body, error.status, headers)


def from_http(error: HTTPException, scope: Scope) -> OmlxError:
    """A routing error of the framework: an unknown path, or a method that the path does not
    have."""
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
    """Fault of ours. The message, which may quote the prompt, is not sent."""
    return EngineError("server.failed", kind=type(error).__name__)


def _type(error: OmlxError, by_status: Mapping[int, str], fault: str) -> str:
    """The error type by status; `fault` is the type of errors that are the server's."""
    if error.status in by_status:
        return by_status[error.status]
    if isinstance(error, Overloaded):
        return "overloaded_error"
    return "invalid_request_error" if error.status < 500 else fault


_EMPTY: Final = ("too_short", "string_too_short")
_LONG: Final = ("too_long", "string_too_long")
_CHOICES: Final = ("literal_error", "enum")
_RELATIONS: Final = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", "≥"),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "≤"),
}
"""Name of the bound and relation to it, by pydantic's error type."""
_JSON_TYPES: Final = {
    "string": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
    "model": "object",
    "model_attributes": "object",
}
"""By the beginning of pydantic's error type: `int_type`, `int_parsing`, `int_from_float`."""
_CODES: Final = {
    **dict.fromkeys(_EMPTY, "request.empty"),
    **dict.fromkeys(_RELATIONS, "request.range"),
    "literal_error": "request.value",
    "missing": "request.missing",
}
"""Ours by pydantic's error type; those of a wrong type end in `_type`, others are rare."""
_UNION_TAGS: Final = ("str", "constrained-str")
_POSITION: Final = re.compile(r"line \d+ column \d+")
_WHOLE: Final = "body"
"""Name of what has no name of its own: the body."""


def from_validation(error: ValidationError) -> BadRequest:
    """The first invalid field of a body, named as the client wrote it: `messages[0].role`.

    Where a field may have one of several types, the error is that of the type which matched most of
    the value.
    """
    details = error.errors(include_url=False, include_input=False)
    of_field = [detail for detail in details if detail["loc"][:1] == details[0]["loc"][:1]]
    # The error deepest inside the value: validation as this type got furthest.
    detail = max(of_field, key=lambda each: (len(each["loc"]), not _mistyped(each)))
    if detail["type"] == "json_invalid":
        position = _POSITION.search(detail["msg"])
        return BadRequest("request.json", detail=position[0] if position else "line 1 column 1")
    field = _field(detail)
    code = _CODES.get(detail["type"], "request.type" if _mistyped(detail) else "request.invalid")
    alternatives = [other for other in of_field if _field(other) == field]
    expected = _expected(detail, alternatives)
    return BadRequest(code, param=field or None, field=field or _WHOLE, expected=expected)


def _expected(detail: ErrorDetails, alternatives: Sequence[ErrorDetails]) -> str:
    """Return the expected value or type; for a rare error its name."""
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _RELATIONS:
        bound, relation = _RELATIONS[kind]
        return f"{relation} {_number(context[bound])}"
    if kind in _LONG:
        return f"length ≤ {context['max_length']}"
    if kind == "string_pattern_mismatch":
        return str(context["pattern"])
    if kind in _CHOICES:
        return str(context["expected"]).replace(" or ", ", ")
    types = [_JSON_TYPES.get(other["type"].partition("_")[0]) for other in alternatives]
    return " | ".join(dict.fromkeys(filter(None, types))) or kind


def _number(bound: Any) -> str:
    if isinstance(bound, float) and bound.is_integer():
        bound = int(bound)
    return str(bound)


def _mistyped(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type")


def _field(error: ErrorDetails) -> str:
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _UNION_TAGS and "[" not in part and not part[:1].isupper():
            # Parts in upper case are names of pydantic models.
            path += f".{part}" if path else part
    return path
