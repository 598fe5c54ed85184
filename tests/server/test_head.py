"""Draft heads over HTTP: of a model's own files, of a directory of their own, and missing ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest

from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from tests import zoo
from tests.models.heads import declare, plain, random_head, save_directory, upstream
from tests.server.dialects import user
from tests.server.running import DRAFT, TARGET, Running, omlx
from tests.zoo.build import save_family

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
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


def ask(running: Running, model: str, **fields: Any) -> httpx.Response:
    messages = user("Count to nine.")
    body = {"model": model, "messages": messages, "max_tokens": 24, "seed": 3, "temperature": 0.8}
    return httpx.post(f"{running.url}{CHAT}", json=body | fields, timeout=120)


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def head_of(running: Running, model: str) -> dict[str, Any]:
    record: dict[str, Any] = httpx.get(f"{running.url}/v1/models/{model}", timeout=60).json()
    return record["speculation"]


def test_a_head_beside_the_weights_drafts(running: Running) -> None:
    by_head = ask(running, "own", speculation="mtp", num_draft_tokens=2)
    assert text(by_head) == text(ask(running, "own", speculation="off"))
    drafter = by_head.json()["timings"]["drafters"]["mtp"]
    assert drafter["proposed"] > 0
    record = head_of(running, "own")
    assert record["head"] == {"kind": "mtp", "loaded": True, "reason": None}
    assert "mtp" in record["drafters"]


def test_a_head_in_a_directory_of_its_own_drafts_as_a_draft_model_does(running: Running) -> None:
    named = {"draft_model": "bare-MTP", "speculation": "mtp", "num_draft_tokens": 2}
    by_head = ask(running, "bare", **named)
    assert text(by_head) == text(ask(running, "bare", speculation="off"))
    assert by_head.json()["timings"]["drafters"]["bare-MTP"]["proposed"] > 0
    refused = ask(running, "promised", speculation="mtp")
    assert refused.json()["error"]["code"] == "spec.off.head_missing"
    assert "omlx pull promised-MTP" in refused.json()["error"]["message"]
    assert head_of(running, "promised")["head"]["reason"]["code"] == "spec.off.head_missing"


def test_a_draft_model_takes_the_place_of_the_own_head(running: Running) -> None:
    named = {"draft_model": DRAFT, "num_draft_tokens": 2}
    assert text(ask(running, TARGET, **named, speculation="draft"))
    refused = ask(running, TARGET, **named, speculation="mtp").json()["error"]
    assert (refused["code"], DRAFT in refused["message"]) == ("spec.off.head_unused", True)


def test_a_model_without_a_head_says_so(running: Running) -> None:
    refused = ask(running, "plain", speculation="mtp").json()["error"]
    assert (refused["code"], refused["param"]) == ("spec.off.no_head", "speculation")


def test_a_head_is_no_model(running: Running) -> None:
    assert ask(running, "bare-MTP").status_code in (400, 404)
