"""The engine in this process, called without HTTP: what the server's streams are compared with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from omlx.engine.build import build_loop
from omlx.engine.speculation.strategy import OFF
from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    Limits,
    Request,
    Sampling,
    Speculation,
    TokensCommitted,
)
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.load_weights import load

MODEL: Final = "alone"
TIMEOUT_S: Final = 600


class EngineAlone:
    """Runs prompts of token ids greedily, without speculation, all at once."""

    def __init__(self, engine: EngineThread, stop_ids: frozenset[int]) -> None:
        self._engine, self._stop_ids = engine, stop_ids
        self._runs = 0

    def run(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> tuple[int, float]:
        """Return the tokens made, and the seconds from the first submission to the last token.

        Raises RuntimeError for a request that failed.
        """
        self._runs += 1
        ended, tokens, failures = threading.Semaphore(0), [0], list[Failed]()

        def receive(events: Sequence[Event], /) -> None:
            for event in events:
                if isinstance(event, TokensCommitted):
                    tokens[0] += len(event.tokens)
                elif isinstance(event, Finished | Failed):
                    if isinstance(event, Failed):
                        failures.append(event)
                    ended.release()

        started = time.perf_counter()
        for number, prompt in enumerate(prompts):
            request = Request(
                f"{self._runs}-{number}",
                prompt,
                Sampling(temperature=0.0),
                max_tokens,
                self._stop_ids,
                speculation=Speculation(OFF),
            )
            self._engine.submit(MODEL, request, receive)
        for _ in prompts:
            if not ended.acquire(timeout=TIMEOUT_S):
                raise RuntimeError("the engine does not answer")
        if failures:
            raise RuntimeError(failures[0].error.message)
        return tokens[0], time.perf_counter() - started


@contextmanager
def engine_alone(folder: Path, rows: int) -> Iterator[EngineAlone]:
    """Load a model into an engine for at most `rows` requests at once."""
    engine = EngineThread()
    engine.start()
    try:
        loaded = engine.call(lambda: load(ModelEntry(MODEL, folder, "bench"), "auto")).result()
        limits = Limits(context_length=loaded.context_length, max_rows=rows)
        loop = engine.call(lambda: build_loop(loaded.model, loaded.vocab_size, limits)).result()
        engine.call(lambda: engine.attach(MODEL, loop)).result()
        yield EngineAlone(engine, loaded.stop_ids)
    finally:
        engine.stop()
