"""Recorded requests of the agents after they have read an image: a model that sees looks at it,
another reads a note."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omlx.settings.schema import Settings
from tests.agents.recordings import image_of, messages, recorded
from tests.agents.test_recorded import streamed
from tests.server.media.pictures import QWEN, seeing
from tests.server.running import TARGET, Running

pytestmark = pytest.mark.needs_extra

AGENTS = {
    "claude_code": ("max_tokens", "messages[3].content[0].content[0]", "image"),
    "codex": ("max_output_tokens", "input[5].output[0]", "input_image"),
}
"""By name, the limit of its answers, and where its image is, as what."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = Settings(model_map=(f"sees={QWEN}", f"blind={TARGET}"))
    with seeing(tmp_path_factory.mktemp("seeing"), QWEN, settings=settings) as running:
        yield running


@pytest.fixture
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def request_of(agent: str, model: str) -> dict[str, Any]:
    """The recorded request, to another model, for an answer of a few tokens."""
    request = recorded(agent, "image")
    request["body"] |= {"model": model, AGENTS[agent][0]: 4}
    return request


def warnings(events: list[dict[str, Any]]) -> list[Any]:
    """The warnings of a streamed answer, in whichever event they are."""
    holders = [holder for event in events for holder in (event, event.get("response", {}))]
    return [warning for holder in holders for warning in holder.get("warnings", ())]


def prompt_of(server: Running) -> str:
    """The words of the newest prompt."""
    assert server.engine.newest is not None
    assert server.pool.last_used is not None
    words = [token for token in server.engine.newest.tokens if token >= 0]
    return str(server.pool.last_used.tokenizer.decode(words))


@pytest.mark.parametrize("agent", AGENTS)
def test_a_model_that_sees_looks_at_the_image(
    server: Running, http: httpx.Client, agent: str
) -> None:
    request = request_of(agent, "sees")
    events = streamed(http, request)
    assert events[-1]["type"] in ("message_stop", "response.completed", "response.incomplete")
    assert not [w for w in warnings(events) if w["code"] == "content.media_in_result"]
    assert server.engine.newest is not None
    assert server.pool.last_used is not None
    eye = server.pool.last_used.vision.family
    assert eye is not None
    (span,) = server.engine.newest.spans
    assert span.image == eye.image_name(image_of(request))
    assert "[image: shown below the results]" in prompt_of(server)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_model_without_sight_reads_a_note(
    server: Running, http: httpx.Client, agent: str
) -> None:
    _, field, kind = AGENTS[agent]
    events = streamed(http, request_of(agent, "blind"))
    found = [w for w in warnings(events) if w["code"] == "content.media_in_result"]
    assert [w["params"] for w in found[-1:]] == [{"field": field, "type": kind}]
    assert f"[{kind}: left out, only text can be read here]" in prompt_of(server)


def test_results_of_custom_tools_show_images_too(server: Running, http: httpx.Client) -> None:
    request = request_of("codex", "sees")
    call, result = messages(request)[-2:]
    call |= {"type": "custom_tool_call", "input": call.pop("arguments")}
    result["type"] = "custom_tool_call_output"
    streamed(http, request)
    assert server.engine.newest is not None
    assert len(server.engine.newest.spans) == 1
