"""Trained drafters and heads over HTTP: of a model, of a directory of their own, missing ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest
from openai import BadRequestError

from omlx.engine.device.model import parts_of
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.registry import Registry
from omlx.models.pool.borrowed_drafters import open_drafter
from omlx.models.pool.opening import open_model
from tests import zoo
from tests.engine.borrowed import weights_of
from tests.lanes import few
from tests.models.heads import declare, plain, random_head, save_directory, upstream
from tests.server.dialects import user
from tests.server.running import DRAFT, TARGET, Running, omlx
from tests.zoo.build import randomise, save_family

pytest.importorskip("mlx_vlm")


TEXT: dict[str, Any] = json.loads((BUNDLED / TARGET / "config.json").read_text())
EAGLE = {
    "speculators_model_type": "eagle3",
    "architectures": ["Eagle3Speculator"],
    "transformer_layer_config": {**TEXT, "num_hidden_layers": 1},
    "draft_vocab_size": 512,
}
BLOCK = {
    **TEXT,
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 1,
    "block_size": 4,
    "dflash_config": {
        "mask_token_id": 0,
        "target_layer_ids": [1, 3],
        "num_target_layers": TEXT["num_hidden_layers"],
    },
}
WRONG = {**EAGLE, "target_hidden_size": 2 * TEXT["hidden_size"]}


def save(folder: Path, config: dict[str, Any]) -> None:
    target, *_ = open_model(BUNDLED / TARGET, "float32", trusted=False)
    parts = parts_of(target)
    assert parts is not None
    module = open_drafter(config, {}, parts)[0].module
    randomise(module, 1, 1.0)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights_of(module))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("models")
    for name, config in {"eagle": EAGLE, "block": BLOCK, "wrong": WRONG}.items():
        save(root / name, config)
    return scan_places([Folder("test", root), Folder("bundled", BUNDLED)])


@pytest.fixture(scope="module")
def running(registry: Registry) -> Iterator[Running]:
    with omlx(registry=registry, default=TARGET) as server:
        yield server


def ask(running: Running, **fields: Any) -> Any:
    return running.openai.chat.completions.create(
        model=TARGET,
        messages=user("Count to nine."),
        max_tokens=24,
        seed=3,
        temperature=0.8,
        extra_body=fields,
    )


def status(running: Running) -> dict[str, Any]:
    record = running.http.get(f"/v1/models/{TARGET}").json()
    return record["speculation"]


@pytest.mark.parametrize("kind", few(("eagle", "block"), "block"))
def test_a_drafter_drafts_and_status_says_so(running: Running, kind: str) -> None:
    plainly = ask(running, speculation="off").choices[0].message.content
    for strategy in (kind, f"ngram;{kind}", "draft", "auto"):
        answer = ask(running, draft_model=kind, speculation=strategy, num_draft_tokens=2)
        assert answer.choices[0].message.content == plainly
        assert answer.timings["drafters"][kind]["proposed"] > 0
    record = status(running)
    assert record["head"] == {"kind": kind, "loaded": True, "reason": None}
    assert record["drafters"][kind]["proposed"] > 0
    assert record["draft"] == kind


def test_another_kind_than_the_one_loaded_is_refused(running: Running) -> None:
    ask(running, draft_model="eagle", speculation="eagle", num_draft_tokens=2)
    codes = {"block": "spec.off.no_drafter", "mtp": "spec.off.head_unused"}
    for kind, code in codes.items():
        with pytest.raises(BadRequestError) as caught:
            ask(running, draft_model="eagle", speculation=kind)
        assert (caught.value.code, caught.value.param) == (code, "speculation")


def test_a_drafter_of_another_model_is_refused_with_what_would_fit(running: Running) -> None:
    with pytest.raises(BadRequestError) as caught:
        ask(running, draft_model="wrong", speculation="eagle")
    assert (caught.value.code, caught.value.param) == ("draft.unfit.head", "draft_model")
    assert str(TEXT["hidden_size"]) in caught.value.message


def test_a_drafter_is_no_model(running: Running) -> None:
    answer = running.http.post("/v1/chat/completions", json={"model": "eagle"})
    assert answer.status_code in (400, 404)
    ids = [each["id"] for each in running.http.get("/v1/models").json()["data"]]
    assert "eagle" not in ids
    assert DRAFT in ids


CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    head = random_head("qwen3_5")
    for name in ("own", "bare", "promised", "plain"):
        folder = Path(shutil.copytree(BUNDLED / TARGET, root / name))
        (folder / "mtp.safetensors").unlink(missing_ok=True)
        save_family(zoo.FAMILIES["qwen3_5"], folder)
    mx.save_safetensors(str(root / "own" / "mtp.safetensors"), upstream(head))
    declare(root / "promised", mtp_num_hidden_layers=1)
    save_directory(root / "bare-MTP", root / "bare", plain(head))
    registry = scan_places([Folder("test", root), Folder("bundled", BUNDLED)])
    with omlx(registry=registry, default="own") as server:
        yield server


def ask_head(headed: Running, model: str, **fields: Any) -> httpx.Response:
    messages = user("Count to nine.")
    body = {"model": model, "messages": messages, "max_tokens": 24, "seed": 3, "temperature": 0.8}
    return headed.http.post(CHAT, json=body | fields)


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def head_of(headed: Running, model: str) -> dict[str, Any]:
    record: dict[str, Any] = headed.http.get(f"/v1/models/{model}").json()
    return record["speculation"]


def test_a_head_beside_the_weights_drafts(headed: Running) -> None:
    by_head = ask_head(headed, "own", speculation="mtp", num_draft_tokens=2)
    assert text(by_head) == text(ask_head(headed, "own", speculation="off"))
    drafter = by_head.json()["timings"]["drafters"]["mtp"]
    assert drafter["proposed"] > 0
    record = head_of(headed, "own")
    assert record["head"] == {"kind": "mtp", "loaded": True, "reason": None}
    assert "mtp" in record["drafters"]


def test_a_head_in_a_directory_of_its_own_drafts_as_a_draft_model_does(headed: Running) -> None:
    named = {"draft_model": "bare-MTP", "speculation": "mtp", "num_draft_tokens": 2}
    by_head = ask_head(headed, "bare", **named)
    assert text(by_head) == text(ask_head(headed, "bare", speculation="off"))
    assert by_head.json()["timings"]["drafters"]["bare-MTP"]["proposed"] > 0
    refused = ask_head(headed, "promised", speculation="mtp")
    assert refused.json()["error"]["code"] == "spec.off.head_missing"
    assert "omlx pull promised-MTP" in refused.json()["error"]["message"]
    assert head_of(headed, "promised")["head"]["reason"]["code"] == "spec.off.head_missing"


def test_a_draft_model_takes_the_place_of_the_own_head(headed: Running) -> None:
    named = {"draft_model": DRAFT, "num_draft_tokens": 2}
    assert text(ask_head(headed, TARGET, **named, speculation="draft"))
    refused = ask_head(headed, TARGET, **named, speculation="mtp").json()["error"]
    assert (refused["code"], DRAFT in refused["message"]) == ("spec.off.head_unused", True)


def test_a_model_without_a_head_says_so(headed: Running) -> None:
    refused = ask_head(headed, "plain", speculation="mtp").json()["error"]
    assert (refused["code"], refused["param"]) == ("spec.off.no_head", "speculation")


def test_a_head_is_no_model(headed: Running) -> None:
    assert ask_head(headed, "bare-MTP").status_code in (400, 404)
