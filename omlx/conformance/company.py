"""Other requests that a server answers while one of them is checked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, Final

from omlx.conformance.client import Client

TOPICS: Final = ("a harbour at night", "how bread is baked", "two trains and a bridge")
"""One stream of answers for each."""

ROUNDS: Final = 4
"""Answers of a stream that follow each other while the block lasts."""

_FIELDS: Final[dict[str, Any]] = {"temperature": 1.0, "max_tokens": 256}


@contextmanager
def company(client: Client) -> Iterator[None]:
    """Keep other answers running during the block, which begins when each of them has begun.

    Raises what `Client.stream` raises in one of them.
    """
    over = threading.Event()
    begun = [threading.Event() for _ in TOPICS]
    with ThreadPoolExecutor(len(TOPICS)) as threads:
        streams = [
            threads.submit(_read, client, number, first, over) for number, first in enumerate(begun)
        ]
        try:
            for first in begun:
                first.wait()
            yield
        finally:
            over.set()
    for stream in streams:
        stream.result()


def _read(client: Client, number: int, begun: threading.Event, over: threading.Event) -> None:
    """Read one answer after another until `over`; set `begun` at the first text, or a failure."""
    question = [{"role": "user", "content": f"Write a long story about {TOPICS[number]}."}]
    try:
        for seed in range(ROUNDS):
            answer = client.stream(messages=question, seed=10 * number + seed, **_FIELDS)
            with closing(answer) as chunks:
                for _ in chunks:
                    begun.set()
                    if over.is_set():
                        return
    finally:
        begun.set()
