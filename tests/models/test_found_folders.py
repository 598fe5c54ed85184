"""Model folders as other tools write them: each answers like the bundled model that it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omlx.models.catalog.config import context_length, longest_context, stop_tokens
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.facts import model_facts
from omlx.settings.schema import Settings
from tests.lanes import few
from tests.models.breakage import (
    CONFIG,
    INDEX,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Breakage,
    content,
    fields,
    together,
)
from tests.server.running import TARGET, Running, omlx

GENERATION = "generation_config.json"
TEMPLATE: str = json.loads((BUNDLED / TARGET / TOKENIZER_CONFIG).read_text())["chat_template"]
OTHER = "{{ raise_exception('the other template') }}"
THETA = 1_000_000.0


def template(name: str, text: str) -> Breakage:
    """Move the template into a file."""
    return together(fields(TOKENIZER_CONFIG, "chat_template"), content(name, text))


def stops(config: object = None, generation: object = None, **tokenizer: object) -> Breakage:
    """Leave stop tokens in these places alone."""
    return together(
        fields(CONFIG, eos_token_id=config),
        fields(GENERATION, eos_token_id=generation),
        fields(TOKENIZER_CONFIG, "eos_token", **tokenizer),
    )


def two_shards(folder: Path) -> None:
    """Rename the weights to the first of two shards, and add the second, which is empty."""
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    header = b"{}      "
    (folder / "model-00002-of-00002.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header
    )


def snapshot_without_reference(folder: Path) -> None:
    """Make a repository of the hub's cache of a folder, without `refs`."""
    snapshot = folder / "models--org--unnamed/snapshots" / ("0" * 40)
    shutil.copytree(folder, snapshot, ignore=lambda *_: ["models--org--unnamed"])
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()


NEWER_ROPE = {"rope_type": "default", "rope_theta": THETA}
LISTED = [{"name": "tool_use", "template": OTHER}, {"name": "default", "template": TEMPLATE}]
PROMISED = {"weight_map": {f"{i}": f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)}}

SAME: dict[str, Breakage] = {
    "rope-parameters": fields(CONFIG, "rope_theta", rope_parameters=NEWER_ROPE),
    "rope-in-scaling": fields(CONFIG, "rope_theta", rope_scaling=NEWER_ROPE),
    "rope-by-layer": fields(CONFIG, "rope_theta", rope_parameters={"full_attention": NEWER_ROPE}),
    "template-jinja": template("chat_template.jinja", TEMPLATE),
    "template-jinja-first": together(
        template("chat_template.jinja", TEMPLATE), fields(TOKENIZER_CONFIG, chat_template=OTHER)
    ),
    "template-json": template("chat_template.json", json.dumps({"chat_template": TEMPLATE})),
    "template-json-list": template("chat_template.json", json.dumps({"chat_template": LISTED})),
    "template-processor": template(
        "processor_config.json", json.dumps({"chat_template": TEMPLATE})
    ),
    "template-list": fields(TOKENIZER_CONFIG, chat_template=LISTED),
    "template-names": fields(
        TOKENIZER_CONFIG, chat_template={"default": TEMPLATE, "tool_use": OTHER}
    ),
    "template-only-further": template("additional_chat_templates/tool_use.jinja", TEMPLATE),
    "template-further-beside-default": together(
        template("additional_chat_templates/tool_use.jinja", OTHER),
        fields(TOKENIZER_CONFIG, chat_template=TEMPLATE),
    ),
    "stop-config": stops(config=2),
    "stop-config-list": stops(config=[0, 2]),
    "stop-generation": stops(generation=2),
    "stop-among-ids-that-are-none": stops(config=[2, -1, 10**6], generation=10**30),
    "stop-plural": stops(eos_token_ids=[2, 0]),
    "stop-plural-number": stops(eos_token_ids=2),
    "stop-plural-texts": stops(eos_token_ids=["<|im_end|>"]),
    "stop-text": stops(generation="<|im_end|>"),
    "stop-map": together(
        stops(), content("special_tokens_map.json", json.dumps({"eos_token": "<|im_end|>"}))
    ),
    "index-of-other-shards": together(two_shards, content(INDEX, json.dumps(PROMISED))),
    "index-unreadable": content(INDEX, "{"),
    "index-no-object": content(INDEX, "[1]"),
    "hub/snapshot": snapshot_without_reference,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, change in {"good": lambda _: None, **SAME}.items():
        folder = shutil.copytree(BUNDLED / TARGET, root / name)
        (folder / "mtp.safetensors").unlink()  # a draft head, which changes no text
        change(folder)
    return root


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[Running]:
    with omlx(registry=scan_places([Folder("models", root)]), default="good") as server:
        yield server


def test_ids_that_are_no_tokens_do_not_hinder_a_grammar(running: Running) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}
    with httpx.Client(base_url=running.url, timeout=60) as http:
        body = {"model": "stop-among-ids-that-are-none", "max_tokens": 20, "response_format": form}
        messages = [{"role": "user", "content": "a"}]
        response = http.post("/v1/chat/completions", json={**body, "messages": messages})
    assert response.status_code == 200, response.text


def answer(server: Running, model: str) -> tuple[str, str]:
    """Return an answer and why it ended."""
    messages = [{"role": "user", "content": "What is 12+7?"}]
    body = {"model": model, "messages": messages, "max_tokens": 60, "temperature": 0}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


@pytest.fixture(scope="module")
def good(running: Running) -> tuple[str, str]:
    return answer(running, "good")


@pytest.mark.parametrize("name", few(SAME, every=10))
def test_a_folder_in_another_form_answers_the_same(
    running: Running, name: str, good: tuple[str, str]
) -> None:
    assert answer(running, "org/unnamed" if name.startswith("hub/") else name) == good
    assert good[1] == "stop"


@pytest.mark.parametrize("name", [name for name in SAME if name.startswith("template-")])
def test_the_template_of_any_form_says_that_a_model_takes_tools(root: Path, name: str) -> None:
    (entry,) = [one for one in scan_places([Folder("m", root)]).entries if one.id == name]
    assert model_facts(entry.files, entry.id).tools


def test_a_template_that_appears_in_another_file_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(BUNDLED / TARGET, folder)
    fields(TOKENIZER_CONFIG, "chat_template")(folder)
    (entry,) = scan_places([Folder("m", folder)]).entries
    assert not model_facts(entry.files, entry.id).tools
    content("processor_config.json", json.dumps({"chat_template": TEMPLATE}))(folder)
    os.utime(folder / "processor_config.json", (1, 1))
    assert model_facts(entry.files, entry.id).tools


def test_stop_tokens_of_all_forms_are_joined() -> None:
    one, two = {"eos_token_id": 1, "text_config": {"eos_token_id": [2, None]}}, {}
    three = {"eos_token_ids": [3, "<end>"], "eos_token_id": True}
    assert stop_tokens(one, two, three) == {1, 2, 3, "<end>"}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("config", "made_for", "longest"),
    [
        ({}, 4096, 4096),
        ({"rope_scaling": YARN}, 16384, 16384),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 16384, 16384),
        ({"rope_parameters": YARN}, 16384, 16384),
        ({"rope_scaling": YARN, "max_position_embeddings": 40960}, 40960, 40960),
        ({"rope_scaling": {**YARN, "original_max_position_embeddings": 1024}}, 4096, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 4096, 16384),
        ({"rope_scaling": {**YARN, "rope_type": "llama3", "factor": 8.0}}, 4096, 32768),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 4096, 4096),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, 4096, 4096),
        ({"rope_scaling": {"type": "yarn", "factor": float("inf")}}, 4096, 4096),
        (
            {
                "rope_scaling": {"type": "longrope", "factor": 8.0},
                "original_max_position_embeddings": 1024,
            },
            4096,
            8192,
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": YARN,
                    "sliding_attention": {"rope_type": "default"},
                }
            },
            16384,
            16384,
        ),
    ],
)
def test_the_context_follows_the_scaling_of_positions(
    config: dict[str, object], made_for: int, longest: int
) -> None:
    whole = {"max_position_embeddings": 4096, **config}
    assert (context_length(whole, 0), longest_context(whole, 0)) == (made_for, longest)
    inner = {"text_config": whole}
    assert (context_length(inner, 0), longest_context(inner, 0)) == (made_for, longest)


def test_a_longer_context_is_served_where_the_scaling_reaches_it(tmp_path: Path) -> None:
    for name in ("scaled", "plain"):
        shutil.copytree(BUNDLED / TARGET, tmp_path / name)
    fields(CONFIG, rope_scaling={"rope_type": "linear", "factor": 2.0})(tmp_path / "scaled")
    registry = scan_places([Folder("models", tmp_path)])
    with (
        omlx(Settings(max_context=6000), registry=registry, default="scaled") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for name, length in (("scaled", 6000), ("plain", 4096)):
            record = http.get(f"/v1/models/{name}").json()
            assert (record["loaded"], record["context_length"]) == (False, length)
            prompt = {"model": name, "prompt": [5] * 6001, "max_tokens": 1}
            refused = http.post("/v1/completions", json=prompt).json()["error"]
            assert refused["params"]["limit"] == length
            assert http.get(f"/v1/models/{name}").json()["context_length"] == length
