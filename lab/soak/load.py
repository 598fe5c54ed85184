"""Clients that keep a server busy, each a thread with the official client, and their counts."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

from openai import APIError, APIStatusError, OpenAI

from lab.soak.answers import compare, fault, joined, whole
from lab.soak.models import MODELS
from lab.soak.requests import REPEAT_SHARE, REPEATED, Json, SoakRequest, soak_request
from omlx.engine.memory import RETRY_AFTER_S

PHASE_S: Final = 20.0
"""Seconds after which the streams go on to the other model."""

OTHER_SHARE: Final = 0.02
"""Share of requests for the model whose phase it is not."""

PATIENCE_S: Final = 600
KNOWN: Final = frozenset({"model", "messages", "seed", "temperature", "max_tokens", "stream"})
"""Parameters of `create`; others, such as `speculation`, go with `extra_body`."""


@dataclass
class Counts:
    """What the clients saw. `errors` are refusals other than 503 with `Retry-After`, broken
    streams, answers that differ from their first telling, and malformed ones."""

    kinds: Counter[str] = field(default_factory=Counter)
    comparisons: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    retried: int = 0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Load:
    """Streams of requests over one server."""

    def __init__(self, url: str, streams: int, salt: int, counts: Counts) -> None:
        self.counts = counts
        self._url = f"{url}/v1"
        self._salt = salt
        self._stopping = threading.Event()
        self._fresh = count(REPEATED + salt * 1_000_000)
        self._first: dict[tuple[int, str], Json] = {}
        self._began = time.monotonic()
        self._streams = streams

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send requests while the block runs; at its end wait for the answers that are read."""
        self._stopping.clear()
        threads = [
            threading.Thread(target=self._stream, args=(number,), name=f"stream-{number}")
            for number in range(self._streams)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _stream(self, number: int) -> None:
        rng = Random(f"{self._salt} {number}")
        with OpenAI(
            base_url=self._url, api_key="none", max_retries=0, timeout=PATIENCE_S
        ) as client:
            while not self._stopping.is_set():
                request = soak_request(self._number(rng), self._model(rng))
                try:
                    self._answer(client, request)
                except Exception as error:  # noqa: BLE001 — each is an error of the soak
                    self._error(request, repr(error))

    def _number(self, rng: Random) -> int:
        return rng.randrange(REPEATED) if rng.random() < REPEAT_SHARE else next(self._fresh)

    def _model(self, rng: Random) -> str:
        phase = int((time.monotonic() - self._began) / PHASE_S)
        return list(MODELS)[(phase + (rng.random() < OTHER_SHARE)) % len(MODELS)]

    def _answer(self, client: OpenAI, request: SoakRequest) -> None:
        """Send a request until it is not deferred, and check its answer."""
        while True:
            try:
                response = self._send(client, request)
                break
            except APIError as error:
                after = _retry_after(error)
                if after is None:
                    raise
                with self.counts.lock:
                    self.counts.retried += 1
                if self._stopping.wait(after):
                    return
        with self.counts.lock:
            self.counts.kinds[request.kind] += 1
        if response is not None:
            self._check(request, response)

    def _send(self, client: OpenAI, request: SoakRequest) -> Json | None:
        """Return the answer, or None if it was cancelled."""
        if not request.body["stream"]:
            return whole(_create(client, request))
        if request.cut is None:
            with _create(client, request) as chunks:
                return joined(chunks)
        key = {"Idempotency-Key": uuid.uuid4().hex} if request.kind == "resume" else {}
        with _create(client, request, key) as chunks:
            for number, _ in enumerate(chunks):
                if number == request.cut:
                    break
        if not key:
            return None
        with _create(client, request, key) as chunks:
            return joined(chunks)

    def _check(self, request: SoakRequest, response: Json) -> None:
        wrong = fault(request, response)
        if wrong is not None:
            self._error(request, wrong)
        verdict = None
        place = (request.number, request.body["model"])
        with self.counts.lock:
            self.counts.tokens += response["usage"].get("completion_tokens", 0)
            first = self._first.get(place)
            if first is None and request.number < REPEATED:
                self._first[place] = response
        if first is not None:
            verdict = compare(request, first, response)
            with self.counts.lock:
                self.counts.comparisons[verdict] += 1
        if verdict == "different":
            self._error(request, f"{first}\nthen\n{response}")

    def _error(self, request: SoakRequest, what: str) -> None:
        with self.counts.lock:
            self.counts.errors.append(f"{request.kind} {request.number} {request.body}: {what}")


def _retry_after(error: APIError) -> float | None:
    """Return in how many seconds a refused request may be sent again; None for other errors.

    A stream that has sent a keep-alive while it waited is refused by its last event.
    """
    if not isinstance(error, APIStatusError):
        return float(RETRY_AFTER_S) if error.code == "memory.full" else None
    after = error.response.headers.get("Retry-After")
    return float(after) if error.status_code == 503 and after is not None else None


def _create(client: OpenAI, request: SoakRequest, headers: dict[str, str] | None = None) -> Any:
    body: Json = {name: value for name, value in request.body.items() if name in KNOWN}
    more = {name: value for name, value in request.body.items() if name not in KNOWN}
    return client.chat.completions.create(**body, extra_body=more, extra_headers=headers)
