"""A request that meets an unload, a load or an eviction is served, or answered with Retry-After."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import mlx.core as mx

from omlx.settings.schema import Settings
from tests.server.running import HYBRID, TARGET, omlx

CHAT = "/v1/chat/completions"
LIMIT = 21 << 20
"""Holds either model, but not both: they take 18 and 16 MB."""


def body(model: str, number: int) -> dict[str, object]:
    messages = [{"role": "user", "content": f"Count to {number}."}]
    return {"model": model, "messages": messages, "max_tokens": 4}


def test_no_request_is_blamed_for_models_that_come_and_go() -> None:
    gc.collect()
    base = mx.get_active_memory()
    settings = Settings(memory_limit=LIMIT)
    over = threading.Event()
    with (
        omlx(settings, used=lambda: mx.get_active_memory() - base) as running,
        ThreadPoolExecutor(5) as threads,
    ):
        http = running.http

        def move(model: str) -> list[httpx.Response]:
            answers = []
            while not over.is_set():
                for action in ("unload", "load", "unload"):
                    answers.append(http.post(f"/v1/models/{model}/{action}"))
            return answers

        def ask(client: int) -> list[httpx.Response]:
            models = (TARGET, HYBRID)
            return [http.post(CHAT, json=body(models[(client + i) % 2], i)) for i in range(8)]

        moving = [threads.submit(move, model) for model in (TARGET, HYBRID)]
        asking = [threads.submit(ask, client) for client in range(3)]
        try:
            answers = [answer for client in asking for answer in client.result()]
        finally:
            over.set()
        answers += [answer for mover in moving for answer in mover.result()]
    refused = [answer for answer in answers if answer.status_code != 200]
    assert {answer.status_code for answer in refused} <= {503}, [each.text for each in refused]
    assert all("retry-after" in answer.headers for answer in refused)
