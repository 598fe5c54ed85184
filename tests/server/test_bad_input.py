"""Invalid requests over HTTP: a clear error in OpenAI's form, and other requests continue."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from omlx.models.catalog.discovery import Folder, scan_places
from omlx.models.catalog.registry import Registry
from omlx.settings.schema import Settings
from tests.server.dialects import user
from tests.server.running import DEMO, DRAFT, TARGET, Running, omlx

CHAT = "/v1/chat/completions"
HELLO = user("hello")
BRINGS = {"draft_model": DRAFT, "num_draft_tokens": 3}


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": TARGET, "messages": HELLO, "max_tokens": 2, **fields}


def refused(answer: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["type"] in ("invalid_request_error", "overloaded_error", "server_error")
    assert isinstance(error["message"], str)
    assert not error["message"].startswith(code), "no sentence for this code"
    return str(error["message"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "org/none"}, 404, "model_not_found", "model"),
        ({"model": "../../etc"}, 404, "model_not_found", "model"),
        ({"draft_model": "org/none"}, 400, "draft.not_found", "draft_model"),
        ({"draft_model": TARGET}, 400, "draft.unfit.same_model", "draft_model"),
        ({"messages": user("word " * 5000)}, 400, "context_length_exceeded", "messages"),
        ({"n": "two"}, 400, "request.type", "n"),
        ({"logit_bias": {"999999": 1}}, 400, "request.logit_bias", "logit_bias"),
        (
            {"chat_template_kwargs": {"chat_template": "x"}},
            400,
            "template.reserved",
            "chat_template_kwargs",
        ),
        ({"continue_final_message": True}, 400, "template.continue", "continue_final_message"),
    ],
)
def test_each_mistake_has_its_code_and_field(
    http: httpx.Client, fields: dict[str, Any], status: int, code: str, param: str, stream: bool
) -> None:
    assert refused(http.post(CHAT, json=ask(stream=stream, **fields)), status, code, param)
    assert http.post(CHAT, json=ask()).status_code == 200


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/completions", "prompt"), ("/v1/responses", "input")]
)
def test_a_prompt_that_is_too_long_is_named_as_it_came(
    http: httpx.Client, path: str, field: str
) -> None:
    answer = http.post(path, json={"model": TARGET, field: "word " * 5000})
    refused(answer, 400, "context_length_exceeded", field)


def test_unknown_paths_and_methods_have_the_same_shape(http: httpx.Client) -> None:
    assert "/v1/nothing" in refused(http.get("/v1/nothing"), 404, "http.not_found")
    refused(http.get("/v1/models/org/none"), 404, "model_not_found", "model")
    answer = http.get(CHAT)
    assert f"GET {CHAT}: " in refused(answer, 405, "http.refused")
    assert answer.headers["Allow"] == "POST"


def test_a_request_of_garbage_is_400_and_the_server_goes_on(
    server: Running, http: httpx.Client
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")
    assert http.get("/health").status_code == 200


def test_with_no_draft_a_request_for_one_is_400_and_others_say_why() -> None:
    settings = Settings(no_draft=True, draft_model=DRAFT)
    with omlx(settings) as running:
        http = running.http
        refused(
            http.post(CHAT, json=ask(draft_model=DRAFT)), 400, "spec.off.no_draft", "draft_model"
        )
        refused(
            http.post(CHAT, json=ask(speculation="draft")), 400, "spec.off.no_draft", "speculation"
        )
        speculation = http.post(CHAT, json=ask()).json()["timings"]["speculation"]
        assert (speculation["strategy"], speculation["gates"]["draft"]["state"]) == ("auto", "off")
        assert speculation["gates"]["draft"]["reason"]["code"] == "spec.off.no_draft"
        assert "--no-draft" in speculation["gates"]["draft"]["reason"]["message"]


def test_without_a_model_or_a_draft_the_request_may_bring_one() -> None:
    with omlx(default=None) as running:
        http = running.http
        refused(http.post(CHAT, json={"messages": HELLO}), 400, "model.none", "model")
        plain = http.post(CHAT, json=ask(max_tokens=8, seed=1, speculation="off")).json()
        assert plain["timings"]["speculation"]["code"] == "spec.off.requested"
        assert plain["timings"]["speculation"]["strategy"] == "off"
        assert (plain["timings"]["draft_n"], plain["timings"]["drafters"]) == (0, {})
        refused(
            http.post(CHAT, json=ask(speculation="draft")),
            400,
            "spec.off.no_draft_model",
            "speculation",
        )
        drafted = http.post(CHAT, json=ask(max_tokens=8, seed=1, **BRINGS)).json()
        assert drafted["timings"]["drafters"][DRAFT]["proposed"] > 0
        assert drafted["choices"] == plain["choices"]
        later = http.post(CHAT, json={"messages": HELLO, "max_tokens": 1})
        assert later.json()["model"] == TARGET  # the one that was used last


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with models whose files look valid but are not, and one valid model."""
    folder = tmp_path_factory.mktemp("models")
    paths = {entry.id: entry.path for entry in DEMO.entries}
    for name in ("whole", "short", "mute", "other"):
        shutil.copytree(paths[DRAFT], folder / "t" / name)
    weights = folder / "t" / "short" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    (folder / "t" / "mute" / "tokenizer.json").write_text("{}")
    tokenizer = folder / "t" / "other" / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    del content["added_tokens"][-1]
    tokenizer.write_text(json.dumps(content))
    shutil.copytree(
        folder / "t" / "whole",
        folder / "t" / "empty",
        ignore=shutil.ignore_patterns("*.safetensors"),
    )
    registry = Registry((*scan_places([Folder("model_dir", folder)]).entries, *DEMO.entries))
    with omlx(registry=registry) as running:
        yield running.http


@pytest.mark.parametrize("name", ["short", "mute", "empty"])
def test_a_model_that_cannot_be_loaded_is_the_error_of_who_asked(
    broken: httpx.Client, name: str
) -> None:
    answer = broken.post(CHAT, json=ask(model=f"t/{name}"))
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"].startswith("model.")
    assert not error["message"].startswith(error["code"])
    assert broken.post(CHAT, json=ask(model="t/whole")).status_code == 200


def test_a_draft_that_cannot_be_used_leaves_the_target_as_it_was(broken: httpx.Client) -> None:
    for name in ("short", "empty", "other"):
        answer = broken.post(CHAT, json=ask(draft_model=f"t/{name}"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "draft_model")
        assert "draft" in broken.post(CHAT, json=ask()).json()["timings"]["speculation"]["gates"]
    fit = broken.post(
        CHAT, json=ask(draft_model="t/whole", num_draft_tokens=3, max_tokens=6)
    ).json()
    assert fit["timings"]["drafters"]["t/whole"]["proposed"] > 0


def test_a_full_queue_is_503_with_retry_after() -> None:
    with omlx(Settings(max_waiting=0)) as running:
        http = running.http
        for stream in (False, True):
            answer = http.post(CHAT, json=ask(stream=stream, n=2))
            refused(answer, 503, "engine.queue_full")
            assert int(answer.headers["Retry-After"]) > 0
