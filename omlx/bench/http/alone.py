"""The engine in this process, asked without HTTP: what the server's streams are compared with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omlx.engine.build import build_loop
from omlx.engine.limits import Limits
from omlx.engine.strategy import OFF
from omlx.engine.thread import EngineThread
from omlx.engine.types import (
    Event,
    Failed,
    Finished,
    Request,
    Sampling,
    Speculation,
    TokensCommitted,
)
from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.load_weights import load

MODEL = "alone"
PATIENCE_S = 600


class Alone:
    """Runs prompts (ids) greedily and plainly, all at once."""

    def __init__(self, engine: EngineThread, stop_ids: frozenset[int]) -> None:
        self._engine, self._stop_ids = engine, stop_ids
        self._runs = 0

    def run(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> tuple[int, float]:
        """(tokens, seconds from the first question to the last token). Raises RuntimeError for one that failed."""
        self._runs += 1
        done, tokens, failed = threading.Semaphore(0), [0], list[Failed]()

        def hear(events: Sequence[Event], /) -> None:
            for event in events:
                if isinstance(event, TokensCommitted):
                    tokens[0] += len(event.tokens)
                elif isinstance(event, Finished | Failed):
                    failed.extend([event] if isinstance(event, Failed) else [])
                    done.release()

        begun = time.perf_counter()
        for i, prompt in enumerate(prompts):
            name, greedy = f"{self._runs}-{i}", Sampling(temperature=0.0)
            asked = Request(
                name, prompt, greedy, max_tokens, self._stop_ids, speculation=Speculation(OFF)
            )
            self._engine.submit(MODEL, asked, hear)
        for _ in prompts:
            if not done.acquire(timeout=PATIENCE_S):
                raise RuntimeError("the engine does not answer")
        if failed:
            raise RuntimeError(failed[0].error.message)
        return tokens[0], time.perf_counter() - begun


@contextmanager
def alone(folder: Path, rows: int) -> Iterator[Alone]:
    engine = EngineThread()
    engine.start()
    try:
        loaded = engine.call(lambda: load(ModelEntry(MODEL, folder, "bench"), "auto")).result()
        limits = Limits(context_length=loaded.context_length, max_rows=rows)
        loop = engine.call(lambda: build_loop(loaded.model, loaded.vocab_size, limits)).result()
        engine.call(lambda: engine.attach(MODEL, loop)).result()
        yield Alone(engine, loaded.stop_ids)
    finally:
        engine.stop()
