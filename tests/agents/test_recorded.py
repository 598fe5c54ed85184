"""Recorded requests of the agents, answered with the tool call of the task.

They stand in for the programs where those are not installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omlx.settings.schema import Settings
from tests.agents.recordings import messages, recorded
from tests.server.dialects import markup
from tests.server.running import TARGET, Running, omlx
from tests.server.spelling import obedient_pool

COMMAND = "echo it rains > p.txt; cat p.txt"
TASK = {"claude_code": 0, "codex": -1}
"""By agent, the message with its task."""


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    running: Running
    with (
        omlx(Settings(model_map=("claude-*=" + TARGET,)), build=obedient_pool) as running,
        httpx.Client(base_url=running.url, timeout=60) as client,
    ):
        yield client


def streamed(http: httpx.Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of an answer."""
    path = f"{request['path']}?{request['query']}"
    answer = http.post(path, json=request["body"], headers=request["headers"])
    assert answer.status_code == 200, answer.text
    lines = [
        line.removeprefix("data: ")
        for line in answer.text.splitlines()
        if line.startswith("data: ")
    ]
    return [json.loads(line) for line in lines]


def first_request(agent: str, tool: str, **arguments: str) -> dict[str, Any]:
    """The first request of an agent, whose task is the call that the model makes."""
    request = recorded(agent)
    messages(request)[TASK[agent]]["content"][-1]["text"] = markup(tool, **arguments)
    return request


def test_claude_code(http: httpx.Client) -> None:
    events = streamed(http, first_request("claude_code", "Bash", command=COMMAND))
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [(block["type"], block.get("name")) for block in started] == [("tool_use", "Bash")]
    pieces = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    arguments = json.loads("".join(piece.get("partial_json", "") for piece in pieces))
    assert arguments["command"] == COMMAND
    said = [
        event["delta"]["text"]
        for event in streamed(http, recorded("claude_code", "loop"))
        if event["type"] == "content_block_delta"
    ]
    assert "it rains" in "".join(said)


def test_codex(http: httpx.Client) -> None:
    first = first_request("codex", "exec_command", cmd=COMMAND)
    final = streamed(http, first)[-1]
    assert final["type"] == "response.completed"
    (call,) = final["response"]["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == (
        "function_call",
        "exec_command",
        {"cmd": COMMAND},
    )
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "it rains"}
    messages(first).extend([call, result])
    final = streamed(http, first)[-1]
    assert "it rains" in final["response"]["output"][0]["content"][0]["text"]
