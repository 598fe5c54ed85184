"""One fuzzing run over the API: requests of schemathesis from the OpenAPI document, and those of
`bodies`.

python -m lab.fuzz --requests 5000        for each operation
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode

from lab.fuzz import bodies, wire
from omlx.engine.types import RequestCounts
from omlx.models.pool.footprint import footprint
from omlx.settings.schema import Settings
from tests.server.running import HYBRID, PATIENCE_S, TARGET, Running, omlx
from tests.server.spelling import spelling_pool


class Faults(logging.Handler):
    """Handler that stores error records of the server: a fault counts even if its response was not
    read.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@contextmanager
def fuzzed() -> Iterator[Running]:
    """A server with short answers and low bounds on what it stores, so that growth is visible."""
    with omlx(
        Settings(max_tokens=16, max_context=512, prefix_bytes=8 << 20), build=spelling_pool
    ) as running:
        yield running


SETTLED_AFTER = 100_000
"""Snapshots of the engine, one per step, after which a request that is still active is a leak."""


@dataclass
class Campaign:
    """Result of a run: `statuses` by operation; footprints of this process with the server, in
    bytes.
    """

    running: Running
    salt: int = 0
    statuses: dict[str, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._document = httpx.get(f"{self.running.url}/openapi.json", timeout=PATIENCE_S).json()
        self._faults = Faults()
        logging.getLogger("omlx").addHandler(self._faults)
        self._schema: Any = schemathesis.openapi.from_dict(self._document)

    @property
    def operations(self) -> list[tuple[str, str]]:
        """(method, path)"""
        operations: list[tuple[str, str]] = []
        for path, methods in self._document["paths"].items():
            operations += [(method, path) for method in methods]
        return operations

    def run(self, requests: int, *, only: str = "", until: float | None = None) -> None:
        """Send `requests` to every operation whose path contains `only`; start none after the time
        `until`.
        """
        for number, (method, path) in enumerate(self.operations):
            if only not in path or (until is not None and monotonic() > until):
                continue
            salt = self.salt * 1000 + number
            before = self._sent(method, path)
            self._from_document(method, path, max(2, requests // 2), salt)
            made = self._sent(method, path) - before  # few, where there is little to say
            self._from_bodies(method, path, max(1, requests - made), salt)
            self.salt += 1

    def settle(self) -> None:
        """Wait until no request is active. Raises AssertionError if one remains."""
        engine = self.running.engine
        for _ in range(SETTLED_AFTER):
            engine.call(lambda: None).result(PATIENCE_S)
            if self._idle():
                break
        assert engine.failure is None
        assert self._idle(), "something still runs"
        engine.forget()
        for model in (HYBRID, TARGET):  # they replace each other once no lease is left
            asked = {"model": model, "prompt": "x", "max_tokens": 1}
            answer = httpx.post(
                f"{self.running.url}/v1/completions", json=asked, timeout=PATIENCE_S
            )
            assert answer.status_code == 200, "a lease was never given back"

    def footprint(self) -> int:
        return footprint()

    def _idle(self) -> bool:
        engine, served = self.running.engine, self.running.pool.last_used
        return served is None or engine.request_counts(served.id) == RequestCounts(0, 0, 0)

    def _from_document(self, method: str, path: str, requests: int, salt: int) -> None:
        operation = self._schema[path][method]
        for mode, share in _modes(operation, requests):
            strategy = operation.as_strategy(generation_mode=mode)

            @seed(salt)
            @settings(
                max_examples=share,
                deadline=None,
                database=None,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            )
            @given(case=strategy)
            def one(case: Any) -> None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of the client's
                    response = case.call(base_url=self.running.url, timeout=PATIENCE_S)
                self._count(method, path, response.status_code, case.as_curl_command())

            one()

    def _from_bodies(self, method: str, path: str, requests: int, salt: int) -> None:
        random = Random(salt)
        for _ in range(requests):
            sent = bodies.drawn(random, method, path)
            self._count(method, path, wire.send(self.running.port, sent), sent)

    def _sent(self, method: str, path: str) -> int:
        return self.statuses.get(f"{method.upper()} {path}", Counter()).total()

    def _count(self, method: str, path: str, status: int | None, what: object) -> None:
        self.statuses.setdefault(f"{method.upper()} {path}", Counter())[str(status)] += 1
        assert status is None or status < 500, f"{status}: {str(what)[:4000]}"
        assert not self._faults.found, f"{str(what)[:4000]}\n{self._faults.found[0]}"


def _modes(operation: Any, requests: int) -> Iterator[tuple[GenerationMode, int]]:
    """Return the modes: invalid requests too where the operation has parameters."""
    if not operation.body:
        yield GenerationMode.POSITIVE, requests
        return
    yield GenerationMode.POSITIVE, requests // 2
    yield GenerationMode.NEGATIVE, requests - requests // 2
