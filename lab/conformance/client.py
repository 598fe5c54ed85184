"""HTTP client of the server under test, and the outcomes of a check.

Refusing a feature or omitting an optional field is *not supported*; accepting a request and
answering otherwise *fails*.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_SUPPORTED = "not supported"


class Failed(Exception):
    """The server accepts a request, but the answer violates the API."""


class NotSupported(Exception):
    """The server refuses a request, or omits an optional field."""


class Unreachable(Exception):
    """The address is none, the server does not answer, or lists no model."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one check; `name` is stable, `title` is for people, `seen` is the evidence."""

    name: str
    title: str
    outcome: Outcome
    seen: str


Json: TypeAlias = dict[str, Any]

REQUEST_S: Final = 120.0
"""Seconds — a request fails after this time without a byte."""

BUDGET_S: Final = 1800.0
"""Seconds — limit for all requests of a run together."""

MAX_BYTES: Final = 16 << 20
"""Bytes — limit for one answer."""

_NO_REASONING: Final[Json] = {
    "reasoning_effort": "none",
    "chat_template_kwargs": {"enable_thinking": False},
}
"""Fields that switch reasoning off where accepted: most checks want text, and reasoning is long."""

_CHUNK: Final = 64 << 10
_SHOWN: Final = 160
"""Characters of a server's text quoted in results."""

_REFUSALS: Final = frozenset({*range(400, 500), 501, 503})
"""Status codes of a refusal; all others but 200 are server errors."""


class Client:
    """Client of the server at `url`, with or without `/v1`. Call `connect` first.

    Raises Unreachable for an invalid address.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        request_s: float = REQUEST_S,
        budget_s: float = BUDGET_S,
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            self._host, self._port = parts.hostname, parts.port
        except ValueError:  # the port is no number
            self._host = None
        if parts.scheme not in ("http", "https") or not self._host:
            expected = "Expected: http://host:port or https://host."
            raise Unreachable(f"{url} is no address of a server. {expected}")
        self._secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        self._base = f"{path}/v1"
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._request_s, self._deadline = request_s, time.monotonic() + budget_s
        self.model = ""
        self._fields: Json = {}

    def connect(self, model: str | None) -> None:
        """Choose a model (default: the first listed) and switch its reasoning off if supported.

        Raises Unreachable if there is no model or no answer.
        """
        try:
            self.model = model or self._first_model()
            self._greet()
        except (OSError, http.client.HTTPException, Failed, NotSupported) as error:
            detail = str(error) or type(error).__name__
            raise Unreachable(f"{self.url} does not answer: {detail}") from error

    def chat(self, **fields: Any) -> Json:
        """Return a whole answer. Raises Failed, NotSupported, and the errors of `http.client`."""
        status, body = self.post(json.dumps({"model": self.model, **self._fields, **fields}))
        return _checked(status, body)

    def stream(self, **fields: Any) -> Generator[Json]:
        """Yield the chunks of an answer; closing the generator ends the request.

        Raises as `chat`, and Failed for a stream without `[DONE]`.
        """
        body = json.dumps({"model": self.model, "stream": True, **self._fields, **fields})
        with closing(self._connect()) as connection:
            response = self._send(connection, body)
            if response.status != http.client.OK:
                _checked(response.status, parsed(b"".join(self._pieces(response))))
            for line in self._lines(response):
                name, _, data = line.partition(b":")
                if name != b"data":
                    continue
                if data.strip() == b"[DONE]":
                    return
                yield parsed(data)
        raise Failed("the stream ends without [DONE]")

    def post(self, body: str) -> tuple[int, Json]:
        """Post `body`, which need not be JSON; return status and parsed response.

        Raises Failed if the response is no JSON object, and the errors of `http.client`.
        """
        with closing(self._connect()) as connection:
            response = self._send(connection, body)
            return response.status, parsed(b"".join(self._pieces(response)))

    def _greet(self) -> None:
        """Request one token without reasoning; drop the fields for that if refused."""
        self._fields = _NO_REASONING
        greeting = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
        try:
            self.chat(**greeting)
        except NotSupported:
            self._fields = {}
            self.chat(**greeting)

    def _first_model(self) -> str:
        with closing(self._connect()) as connection:
            connection.request("GET", f"{self._base}/models", headers=self._headers)
            response = connection.getresponse()
            record = parsed(b"".join(self._pieces(response)))
        models = _checked(response.status, record).get("data")
        if not isinstance(models, list) or not models:
            raise Unreachable(f"{self.url} lists no model. Name one with --model.")
        return str(models[0]["id"])

    def _connect(self) -> http.client.HTTPConnection:
        timeout_s, host = min(self._request_s, self._left()), self._host or ""
        if self._secure:
            return http.client.HTTPSConnection(host, self._port, timeout=timeout_s)
        return http.client.HTTPConnection(host, self._port, timeout=timeout_s)

    def _send(self, connection: http.client.HTTPConnection, body: str) -> http.client.HTTPResponse:
        path = f"{self._base}/chat/completions"
        connection.request("POST", path, body.encode(), self._headers)
        return connection.getresponse()

    def _left(self) -> float:
        """Return the remaining seconds of this run. Raises Failed at zero."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise Failed("no time is left for this run")
        return left

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        received = 0
        while piece := response.read1(_CHUNK):
            self._left()
            received += len(piece)
            if received > MAX_BYTES:
                raise Failed(f"the answer has more than {MAX_BYTES} bytes")
            yield piece

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        rest = b""
        for piece in self._pieces(response):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
        yield rest


def _checked(status: int, body: Json) -> Json:
    """Return the body of a success. Raises NotSupported for a refusal, Failed for an error."""
    if status == http.client.OK:
        return body
    error = body.get("error", body.get("detail", body))
    message: object = error
    if isinstance(error, Mapping):
        message = error.get("message", error)
    text = f"{status}: {message}"[:_SHOWN]
    if status in _REFUSALS:
        raise NotSupported(text)
    raise Failed(text)


def parsed(text: bytes | str) -> Json:
    """Parse a JSON object. Raises Failed for anything else."""
    start = text[:_SHOWN] if isinstance(text, str) else text[:_SHOWN].decode(errors="replace")
    try:
        record = json.loads(text)
    except ValueError:
        raise Failed(f"no JSON: {start!r}") from None
    if not isinstance(record, dict):
        raise Failed(f"no JSON object: {start!r}")
    return record
