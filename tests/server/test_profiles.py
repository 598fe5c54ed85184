"""Profiles over HTTP: names for one loaded model, with defaults of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from omlx.models.catalog.catalog import Profile
from omlx.models.pool.speculation import check_value
from omlx.server.request.generation_request import GenerationRequest, with_profile
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Layer, Source
from omlx.settings.schema import Scope, Value, table
from omlx.settings.store import Store
from tests.lanes import few
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx
from tests.server.test_settings_files import GIVEN, seen

FAST, DEEP = f"{TARGET}:fast", f"{TARGET}:deep"
ROWS = [name for name in GIVEN if table()[name].allowed_in(Scope.PROFILE)]
VALUES: dict[str, dict[str, Value]] = {
    "fast": {"speculation": "off", "temperature": 0.0, "thinking_budget": 0, "max_tokens": 9},
    "deep": {
        "temperature": 0.9,
        "top_p": 0.95,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "thinking_budget": 6,
        "max_tokens": 24,
        "draft_max": 4,
        "speculation": "ngram:n=3",
        "chat_template_kwargs": {"enable_thinking": True},
    },
}
HELLO = user("Hello.")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store = Store(tmp_path_factory.mktemp("home"), check_value)
    for name, values in VALUES.items():
        store.patch(values, TARGET, name)
    for name in ROWS:
        store.patch({name: GIVEN[name][0]}, TARGET, name)
    store.patch({"model_map": ("claude-*=target:deep",)})
    flags = Layer(Source.CLI, {"top_k": 11, "max_tokens": 7})
    with omlx(configuration=LiveConfiguration((flags,), store), default=FAST) as running:
        yield running


@pytest.fixture
def openai(server: Running) -> OpenAI:
    return server.openai


def engine_request(server: Running) -> tuple[Any, ...]:
    """What the engine was asked for, but for its id."""
    request = server.engine.newest
    assert request is not None
    budget = seen(server, "thinking_budget")
    return request.tokens, request.sampling, request.max_tokens, request.speculation, budget


CHAT = "/v1/chat/completions", {"messages": HELLO}
RESPONSES = "/v1/responses", {"input": "Hello.", "store": False}
MESSAGES = "/v1/messages", {"messages": HELLO, "max_tokens": 5}
COMPLETIONS = "/v1/completions", {"prompt": "Hello."}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    ("path", "body"), few([CHAT, RESPONSES, MESSAGES, COMPLETIONS], RESPONSES, MESSAGES)
)
def test_a_profile_asks_for_what_its_values_ask_for(
    http: httpx.Client, server: Running, path: str, body: dict[str, Any], name: str
) -> None:
    sent = dict(VALUES[name])
    if path == "/v1/responses":
        sent["max_output_tokens"] = sent.pop("max_tokens")
    answers, asked = [], []
    for model, fields in ((f"{TARGET}:{name}", {}), (TARGET, sent)):
        answer = http.post(path, json={"model": model, **fields, **body, "seed": 3})
        answers.append(answer.json())
        asked.append(engine_request(server))
    assert asked[0] == asked[1]
    assert [answer["model"] for answer in answers] == [f"{TARGET}:{name}", TARGET]
    texts = [_text(answer) for answer in answers]
    assert texts[0] == texts[1] != ""


def _text(answer: dict[str, Any]) -> str:
    """All that was generated, reasoning too."""
    parts = answer.get("choices") or answer.get("output") or answer["content"]
    return str([{**part, "id": None, "signature": None} for part in parts])


def test_ollamas_api_has_profiles_too(http: httpx.Client, server: Running) -> None:
    options = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "repeat_penalty": 1.1}
    options |= {"num_predict": 24, "draft_max": 4, "speculation": "ngram:n=3"}
    asked = []
    for model, more in ((DEEP, {}), (TARGET, options)):
        body = {"model": model, "messages": HELLO, "stream": False, "options": {"seed": 3, **more}}
        assert http.post("/api/chat", json=body).json()["model"] == model
        asked.append(engine_request(server)[1:4])
    assert asked[0] == asked[1]
    names = [model["name"] for model in http.get("/api/tags").json()["models"]]
    assert {FAST, DEEP, f"{TARGET}:latest"} <= set(names)
    shown = http.post("/api/show", json={"model": DEEP}).json()
    assert shown["details"]["parent_model"] == TARGET
    (running,) = http.get("/api/ps").json()["models"]
    assert running["name"] == f"{TARGET}:latest"


@pytest.mark.parametrize("name", ROWS)
def test_what_a_request_says_goes_before_its_profile(
    http: httpx.Client, server: Running, name: str
) -> None:
    configured, said = GIVEN[name]
    body: dict[str, Any] = {"model": f"{TARGET}:{name}", "messages": HELLO}
    if name != "max_tokens":
        body["max_tokens"] = 2
    found = []
    for more in ({}, {name: said}):
        http.post("/v1/chat/completions", json={**body, **more}).raise_for_status()
        found.append(seen(server, name))
    if name == "chat_template_kwargs":
        assert found[0] > found[1]
    else:
        assert found == [configured, said]


def test_one_copy_and_one_prefix_cache_serve_all_profiles(
    http: httpx.Client, server: Running
) -> None:
    text = "One line of a long question. " * 12
    cached = []
    for model in (TARGET, FAST, DEEP):
        body = {"model": model, "messages": user(text), "max_tokens": 2}
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] < 32 < min(cached[1:])
    assert [served.id for served in server.pool.loaded] == [TARGET]


def test_profiles_are_listed_behind_their_model(openai: OpenAI, server: Running) -> None:
    listed = {model.id: model for model in openai.models.list()}
    ids = list(listed)
    assert ids[ids.index(TARGET) + 1] == f"{TARGET}:chat_template_kwargs"
    for model in (
        listed[DEEP],
        openai.models.retrieve(DEEP),
        openai.models.retrieve("target:deep"),
    ):
        extra = model.model_extra or {}
        assert (model.id, extra["parent"], extra["context_length"]) == (DEEP, TARGET, 4096)
    assert (listed[DEEP].model_extra or {})["parent"] == TARGET
    assert "parent" not in (listed[TARGET].model_extra or {})
    studio = [model["id"] for model in server.http.get("/api/v0/models").json()["data"]]
    assert server.http.get(f"/api/v0/models/{DEEP}").json()["id"] == DEEP
    assert studio == ids
    assert DEEP in [model.id for model in server.claude.models.list()]


def test_the_default_model_and_model_names_may_be_profiles(
    http: httpx.Client, server: Running
) -> None:
    for named, profile in (
        ({}, FAST),
        ({"model": "claude-any"}, DEEP),
        ({"model": "target:fast"}, FAST),
    ):
        answer = http.post("/v1/chat/completions", json={**named, "messages": HELLO}).json()
        assert answer["model"] == profile
        assert seen(server, "max_tokens") == VALUES[profile.rpartition(":")[2]]["max_tokens"]


def test_an_unknown_profile_says_which_there_are(openai: OpenAI, server: Running) -> None:
    with pytest.raises(NotFoundError) as caught:
        openai.chat.completions.create(model="target:slow", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert f"{TARGET}, {TARGET}:chat_template_kwargs" in caught.value.message
    assert DEEP in caught.value.message
    for path, body in (("/v1/messages", MESSAGES[1]), ("/api/chat", {"messages": HELLO})):
        answer = server.http.post(path, json={"model": "target:slow", **body})
        assert answer.status_code == 404
        assert DEEP in answer.text


def test_the_prompt_of_a_profile_is_counted(http: httpx.Client, server: Running) -> None:
    counts = []
    for model in (f"{TARGET}:chat_template_kwargs", FAST):
        body = {"model": model, "messages": HELLO}
        counts.append(http.post("/v1/messages/count_tokens", json=body).json()["input_tokens"])
        http.post("/v1/messages", json={**body, "max_tokens": 1})
        assert len(engine_request(server)[0]) == counts[-1]
    assert counts[0] != counts[1]


def test_a_profile_may_ask_for_receipts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.patch({"receipt": True, "max_tokens": 2}, TARGET, "kept")
    with omlx(configuration=LiveConfiguration((), store), home=tmp_path) as running:
        http = running.http
        for more, kept in (({}, True), ({"receipt": False}, False)):
            body = {"model": "target:kept", "messages": HELLO, **more}
            answer = http.post("/v1/chat/completions", json=body).json()
            assert ("receipt" in str(answer)) is kept


def prompted(*messages: dict[str, str], **fields: Any) -> list[Any]:
    """Return the messages of a request for a profile with a system prompt."""
    profile = Profile(TARGET, "poet", {"system_prompt": "Rhyme.\nAlways."})
    return list(with_profile(GenerationRequest(messages=messages, **fields), profile).messages)


def test_the_system_prompt_of_a_profile_comes_before_a_conversation_without_one() -> None:
    hello = {"role": "user", "content": "Hello."}
    assert prompted(hello) == [{"role": "system", "content": "Rhyme.\nAlways."}, hello]
    own = {"role": "system", "content": "Be brief."}
    assert prompted(own, hello) == [own, hello]
    assert prompted(prompts=("Once",)) == []
