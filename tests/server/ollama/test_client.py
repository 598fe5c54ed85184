"""Ollama's client and a real server: answers, downloads, how long models stay in memory."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import ollama
import pytest

from omlx.errors import BadRequest
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.server.dialects.ollama.fields import duration_s
from omlx.settings.schema import Settings
from tests.cli.serving import serving
from tests.cli.test_packages import place
from tests.models.hub import Hub, running
from tests.schemas import record
from tests.server.dialects import markup, user
from tests.server.running import DRAFT, PATIENCE_S, TARGET, Running, omlx
from tests.server.spelling import CONTEXT, spelling_pool

TAGGED = f"{TARGET}:latest"
QUESTION = user("List three rivers, then list them again.")
OPTIONS: dict[str, Any] = {"seed": 7, "temperature": 0.7, "num_predict": 48}
CALL = markup("look", at="Zürich")
THOUGHT = "<think>\nHm.\n</think>\n\nYes."


def test_python_functions_are_tools(spelling_llama: Any) -> None:
    def look(at: str) -> str:
        """Look somewhere."""
        return at

    said = spelling_llama.chat(TARGET, user(CALL), tools=[look], think=False)
    assert said.message.tool_calls[0].function.arguments == {"at": "Zürich"}


def test_thinking_of_a_prompt_and_by_a_level(spelling_llama: Any) -> None:
    parts = list(spelling_llama.chat(TARGET, user(THOUGHT), think="high", stream=True))
    assert "".join(part.message.thinking or "" for part in parts).strip() == "Hm."
    plain = spelling_llama.chat(TARGET, user("Yes."), think=False)
    assert plain.message.thinking is None
    made = spelling_llama.generate(TARGET, THOUGHT, think=True)
    assert made.thinking.strip() == "Hm."
    assert made.response == "Yes."
    ada = '{"name": "Ada", "age": 36}'
    form = record(name={"type": "string"}, age={"type": "integer"})
    parts = spelling_llama.generate(TARGET, f"{ada} is it.", think=False, format=form, stream=True)
    assert "".join(part.response for part in parts) == ada


def test_any_object(spelling_llama: Any) -> None:
    said = spelling_llama.chat(TARGET, user('{"a": 1}'), format="json", think=False)
    assert json.loads(said.message.content) == {"a": 1}
    assert spelling_llama.chat(TARGET, user("a"), format="", think=False).message.content == "a"


def test_generate_with_and_without_a_template(server: Running, llama: Any) -> None:
    options = {"seed": 3, "temperature": 0, "num_predict": 12}
    raw = server.openai.completions.create(
        model=TARGET, prompt="Once upon", temperature=0, seed=3, max_tokens=12
    )
    made = llama.generate(TARGET, "Once upon", raw=True, options=options)
    assert made.response == raw.choices[0].text
    system = [{"role": "system", "content": "Be short."}, *user("Once upon")]
    chat = llama.chat(TARGET, system, options=options)
    parts = list(
        llama.generate(TARGET, "Once upon", system="Be short.", stream=True, options=options)
    )
    assert "".join(part.response or "" for part in parts) == chat.message.content
    assert "".join(part.thinking or "" for part in parts) == (chat.message.thinking or "")
    assert parts[-1].done_reason == chat.done_reason
    with pytest.raises(ollama.ResponseError) as caught:
        llama.generate(TARGET, "def f():", suffix="return x")
    assert caught.value.status_code == 400  # the bundled model has no tokens for gaps
    assert "infill" in caught.value.error or "suffix" in caught.value.error


def test_logprobs(llama: Any) -> None:
    said = llama.chat(TARGET, QUESTION, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert len(said.logprobs) >= said.eval_count - 1
    assert all(len(entry.top_logprobs) == 2 for entry in said.logprobs)
    parts = llama.chat(TARGET, QUESTION, options=OPTIONS, logprobs=True, stream=True)
    streamed = [entry.token for part in parts for entry in part.logprobs or ()]
    assert streamed == [entry.token for entry in said.logprobs]


def test_models_their_context_and_abilities(llama: Any) -> None:
    assert {TAGGED, f"{DRAFT}:latest"} <= {model.model for model in llama.list().models}
    llama.chat(TARGET, user("a"), options={"num_predict": 1})
    shown = llama.show(TARGET)
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == CONTEXT
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities)
    assert "vision" not in shown.capabilities
    (running,) = [loaded for loaded in llama.ps().models if loaded.model == TAGGED]
    assert running.context_length == CONTEXT
    assert running.size_vram == running.size > 0
    assert running.expires_at.year > 2300


def test_errors_are_ollamas(llama: Any) -> None:
    def refused(status: int, word: str, **body: Any) -> None:
        with pytest.raises(ollama.ResponseError) as caught:
            llama.chat(**{"model": TARGET, "messages": QUESTION, **body})
        assert caught.value.status_code == status
        assert word in caught.value.error

    refused(404, "nobody", model="nobody")
    refused(400, "options.temperature", options={"temperature": "hot"})
    refused(400, "options.top_p", options={"top_p": 2})
    refused(400, "keep_alive", keep_alive="soon")
    refused(400, "messages[0].images[0]", messages=[user("a")[0] | {"images": ["AAAA"]}])
    refused(400, "format", format={"type": "nothing"})


def test_what_has_no_effect_is_named(llama: Any) -> None:
    options = {"mirostat": 2, "num_gpu": 1, "tfs_z": 1.0, "num_ctx": 1 << 20, "num_predict": 1}
    body = {"model": TARGET, "messages": QUESTION, "stream": False, "options": options}
    answer = llama._client.post("/api/chat", json=body).json()
    codes = {warning["code"]: warning["params"] for warning in answer["warnings"]}
    assert codes["ollama.options"]["fields"] == "options.mirostat, options.num_gpu"
    assert codes["ollama.num_ctx"] == {"asked": 1 << 20, "length": CONTEXT}


def test_a_model_that_does_not_think_says_so(tmp_path: Path) -> None:
    """Before it is loaded."""
    shutil.copy(BUNDLED / TARGET / "config.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    registry = Registry((ModelEntry("org/plain", tmp_path, "test"),))
    with omlx(registry=registry, default=None) as running, ollama.Client(running.url) as client:
        assert client.show("org/plain").capabilities == ["completion"]
        for think in (True, "low"):
            with pytest.raises(ollama.ResponseError, match="thinking") as caught:
                client.generate("org/plain", "Why?", think=think)
            assert caught.value.status_code == 400
        assert client.ps().models == []


LOOK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
LOOK_CALL = markup("look")


@pytest.fixture
def http(speller: Running) -> Any:
    return speller.http


def names(http: httpx.Client) -> list[str]:
    return [model["model"] for model in http.get("/api/tags").json()["models"]]


def context_of(shown: dict[str, Any]) -> int:
    info = shown["model_info"]
    (length,) = [info[name] for name in info if name.endswith(".context_length")]
    assert info[f"{info['general.architecture']}.context_length"] == length
    return int(length)


def test_vs_code(http: httpx.Client) -> None:
    """Version, tags, show of each model; then OpenAI's chat with the name from the list."""
    for method in ("GET", "HEAD"):
        assert http.request(method, "/").status_code == 200
    version = http.get("/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
    name = f"{TARGET}:latest"
    assert name in names(http)
    shown = http.post("/api/show", json={"model": name}).json()
    assert {"completion", "tools", "thinking"} <= set(shown["capabilities"])
    assert "vision" not in shown["capabilities"]
    assert context_of(shown) == CONTEXT
    assert shown["model_info"]["general.basename"] == "target"
    body = {
        "model": name,
        "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": LOOK_CALL}],
        "tools": [LOOK],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.1,
        "top_p": 1,
        "n": 1,
    }
    chunks = http.post("/v1/chat/completions", json=body).text
    assert '"name":"look"' in chunks
    assert chunks.rstrip().endswith("data: [DONE]")


def test_open_webui(http: httpx.Client) -> None:
    """It lists tags and running models, adds `:latest` to names without a tag, looks for them among
    those of the list, and streams NDJSON."""
    assert http.get("/api/version").json()["version"]
    assert isinstance(http.get("/api/ps").json()["models"], list)
    listed = {model["model"]: model for model in http.get("/api/tags").json()["models"]}
    name = next(name for name in listed if name.startswith(TARGET))
    assert ":" in name
    assert {"size", "digest", "modified_at", "details"} <= listed[name].keys()
    shown = http.post("/api/show", json={"name": name}).json()
    assert context_of(shown) == CONTEXT
    body = {
        "model": name,
        "messages": user("A title."),
        "stream": True,
        "think": False,
        "options": {"temperature": 0.2, "num_ctx": 2048, "num_predict": 50, "stop": ["###"]},
        "keep_alive": "5m",
    }
    response = http.post("/api/chat", json=body)
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.split("\n") if line]
    assert "".join(line["message"]["content"] for line in lines) == "A title."
    assert all(line["created_at"] and line["model"] for line in lines)
    assert lines[-1]["done"]
    assert lines[-1]["eval_duration"] > 0
    assert "warnings" not in lines[-1]


def test_opencode(http: httpx.Client) -> None:
    """Model and context are in its own file; `/v1/models` has both for programs that look."""
    listed = {model["id"]: model for model in http.get("/v1/models").json()["data"]}
    assert listed[TARGET]["context_length"] == CONTEXT
    assert "tools" in listed[TARGET]["capabilities"]
    body = {
        "model": TARGET,
        "max_tokens": 64,
        "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": LOOK_CALL}],
        "tools": [LOOK],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert '"name":"look"' in http.post("/v1/chat/completions", json=body).text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/push"),
        ("DELETE", "/api/delete"),
    ],
)
def test_models_are_not_changed(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path, json={"model": TARGET})
    assert answer.status_code == 400
    assert path in answer.json()["error"]
    assert answer.json()["code"] == "ollama.models"


def test_errors_of_the_server_are_texts_below_api(http: httpx.Client) -> None:
    for method, path in (("GET", "/api/nothing"), ("GET", "/api/chat")):
        assert isinstance(http.request(method, path).json()["error"], str)
    foreign = http.get("/api/tags", headers={"Origin": "http://example.com"})
    assert foreign.status_code == 403
    assert isinstance(foreign.json()["error"], str)


KEY = "secret"
NAME = "org/pulled"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add(NAME, BUNDLED / "omlx-demo/draft")
        hub.gated.add("org/gated")
        hub.add("org/gated", BUNDLED / "omlx-demo/draft")
        yield hub


def client_of(url: str, key: str = "none") -> Any:
    return ollama.Client(url, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.slow
def test_a_model_is_pulled_and_answers(hub: Hub, tmp_path: Path) -> None:
    place(tmp_path, "small", "draft")
    variables = hub.environment(tmp_path / "hub")
    with (
        serving(tmp_path, "org/small", "--api-key", KEY, **variables) as server,
        client_of(server.url, KEY) as client,
    ):
        steps = list(client.pull(f"{NAME}:latest", stream=True))
        assert [steps[0].status, steps[-1].status] == ["pulling manifest", "success"]
        sizes = [(step.completed, step.total) for step in steps if step.total]
        assert all(0 <= done <= total for done, total in sizes)
        said = client.chat(NAME, user("a"), options={"num_predict": 2})
        assert said.eval_count > 0
        assert client.pull(NAME).status == "success"
        for name, status, word in (
            ("org/gated", 400, "gated"),
            ("org/missing", 400, "org/missing"),
            ("llama3.2", 400, "mlx-community"),
        ):
            with pytest.raises(ollama.ResponseError, match=word) as caught:
                client.pull(name)
            assert caught.value.status_code == status
        with pytest.raises(ollama.ResponseError, match="gated"):
            list(client.pull("org/gated", stream=True))


def test_without_the_servers_key_nothing_is_downloaded(server: Running) -> None:
    with client_of(server.url) as client:
        assert [step.status for step in client.pull(TARGET, stream=True)][-1] == "success"
        with pytest.raises(ollama.ResponseError, match="--api-key") as caught:
            client.pull(NAME)
    assert caught.value.status_code == 403


ONE_TOKEN = {"options": {"num_predict": 1}, "stream": False}
POLL_S = 0.05


@pytest.fixture(scope="module")
def loader() -> Iterator[httpx.Client]:
    with omlx(Settings(draft_model=None), build=spelling_pool) as running:
        yield running.http


def listed(loader: httpx.Client) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = loader.get("/api/ps").json()["models"]
    return models


def eventually(holds: Callable[[], bool]) -> None:
    for step in count():
        if holds():
            return
        assert step * POLL_S < PATIENCE_S
        sleep(POLL_S)  # the sweep of idle models runs once a second


def test_a_body_without_messages_loads_and_unloads(loader: httpx.Client) -> None:
    """What `ollama run`, `ollama stop` and Open WebUI's unload button send."""
    for path, body, content in (
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"prompt": ""}, {"response": ""}),
    ):
        loaded = loader.post(path, json={"model": TARGET, **body}).json()
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")
        assert content.items() <= loaded.items()
        assert [model["name"] for model in listed(loader)] == [f"{TARGET}:latest"]
        gone = loader.post(path, json={"model": TARGET, "keep_alive": 0, **body}).json()
        assert gone["done_reason"] == "unload"
        eventually(lambda: not listed(loader))
        # a model that is not in memory is not loaded for this
        assert loader.post(path, json={"model": TARGET, "keep_alive": "0s", **body}).is_success
        assert listed(loader) == []


def test_a_request_says_how_long_its_model_stays(loader: httpx.Client) -> None:
    ask = {"model": TARGET, "messages": user("a"), **ONE_TOKEN}

    def expires(**keep: Any) -> datetime:
        assert loader.post("/api/chat", json=ask | keep).is_success
        return datetime.fromisoformat(listed(loader)[0]["expires_at"])

    now = datetime.now(UTC)
    assert expires().year > 2300  # as configured: never
    assert timedelta(minutes=9) < expires(keep_alive="10m") - now < timedelta(minutes=20)
    assert timedelta(minutes=9) < expires() - now  # what was said stays
    for endless in (-1, "-1m", 1e300):
        assert expires(keep_alive=endless).year > 2300
    assert loader.post("/api/chat", json=ask | {"keep_alive": 0}).is_success
    eventually(lambda: not listed(loader))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (5, 5),
        (-1, -1),
        ("5m", 300),
        ("1h30m", 5400),
        ("-1m", -60),
        ("0", 0),
        ("90", 90),
        ("1.5s", 1.5),
        ("250ms", 0.25),
    ],
)
def test_durations(text: float | str, seconds: float) -> None:
    assert math.isclose(duration_s(text), seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 m", "m", "1h30", "٣m", "5m" * 9 + "x", "1e9s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        duration_s(text)
    assert caught.value.param == "keep_alive"
