"""Prefixes on disk over processes: what one server has computed, the next one need not."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.killed import serving
from tests.server.running import HYBRID, PATIENCE_S, TARGET

SYSTEM = "You edit small programs with care, and say what you changed. " * 60


def ask(client: httpx.Client, model: str, text: str) -> dict[str, Any]:
    """Ask behind the same long system prompt. Return cached tokens, prompt tokens and text."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0.8, "seed": 3}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    record = answer.json()
    usage = record["usage"]
    return {
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "prompt": usage["prompt_tokens"],
        "text": record["choices"][0]["message"]["content"],
    }


def disk(client: httpx.Client, model: str) -> dict[str, Any]:
    record: dict[str, Any] = client.get(f"/v1/models/{model}").json()["prefixes"]["disk"]
    return record


def wait_until_written(client: httpx.Client, model: str, tokens: int) -> None:
    """Wait until blocks of so many tokens are on disk."""
    until = time.monotonic() + PATIENCE_S
    while disk(client, model)["pieces"] < tokens // 64:
        assert time.monotonic() < until, disk(client, model)
        time.sleep(0.05)  # the disk writes when the model is idle


@pytest.mark.parametrize(
    ("model", "end"),
    [
        pytest.param(TARGET, signal.SIGKILL, id="killed", marks=pytest.mark.slow),
        pytest.param(HYBRID, signal.SIGTERM, id="ended"),
    ],
)
def test_the_next_process_reads_a_long_prompt_from_disk(
    tmp_path: Path, model: str, end: signal.Signals
) -> None:
    room = ("--prefix-disk", "100MB")  # by default that of a disk with 10 GiB free
    with serving(tmp_path, model, end, *room) as (client, _):
        first = ask(client, model, "Name a river.")
        assert first["cached"] == 0
        if end is signal.SIGKILL:
            wait_until_written(client, model, first["prompt"])
    with serving(tmp_path, model, end, *room) as (client, _):
        again = ask(client, model, "Name a river.")
        assert again["cached"] > first["prompt"] - 12  # all but the generation prompt
        assert again["text"] == first["text"]
        assert (disk(client, model)["hits"], disk(client, model)["off"]) == (1, None)
        metrics = client.get("/metrics").text
        assert f'omlx_prefix_disk_hits_total{{model="{model}"}} 1.0' in metrics
        assert client.delete(f"/v1/models/{model}/prefixes").status_code == 204
        assert ask(client, model, "Name a river.") == first
