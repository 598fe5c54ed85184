"""Text models of mlx-vlm over HTTP, by OpenAI's client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from openai import BadRequestError

from omlx.engine.device.model import parts_of
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.drafters import shard_head
from omlx.models.pool.opening import open_model
from tests.models.heads import in_shards
from tests.server.dialects import user
from tests.server.running import TARGET, Running, omlx
from tests.templates.fetched import write_tokenizer
from tests.zoo.borrowed import CONFIGS
from tests.zoo.build import randomise, save_borrowed

pytest.importorskip("mlx_vlm")

from omlx.models.pool.borrowed_drafters import open_drafter
from tests.engine.borrowed import weights_of

pytestmark = [
    pytest.mark.filterwarnings("ignore")  # transformers warns of types that it does not know
]
NAMES = ("mimo_v2", "qwen4_exp")
"""Rows of the first share a batch; those of the second run one after another."""
TEMPLATES = {
    "cohere2_moe": "Cohere2MoE",
    "deepseek_v4": "deepseek-ai-DeepSeek-V4",
    "minimax_m3": "MiniMax-M3",
    # The newest of the same makers that a package has: their calls and reasoning are the same.
    "glm5_next": "GLM-4.7-Flash",
    "glm_moe_dsa_shared": "GLM-4.7-Flash",
    "mistral_large3": "mistralai-Ministral-3-14B-Reasoning-2512",
    "qwen4_exp": "Qwen3.5-4B",
    "step3p7": "StepFun3.5-Flash",
}
"""Real chat templates; the other families have the bundled one, as no package has theirs."""


def save(name: str, root: Path) -> None:
    """Write a tiny model of a family, with its chat template and markers."""
    folder = Path(shutil.copytree(BUNDLED / TARGET, root / name))
    for head in folder.glob("mtp*.safetensors"):
        head.unlink()
    if name in TEMPLATES:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        write_tokenizer(TEMPLATES[name], folder)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        last = max(token["id"] for token in tokenizer["added_tokens"])
        config["vocab_size"] = max(config["vocab_size"], last + 1)
        (folder / "config.json").write_text(json.dumps(config))
    save_borrowed(name, folder)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        save(name, root)
    with omlx(registry=scan_places([Folder("test", root)]), default=NAMES[0]) as server:
        yield server


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """A server with the family that parametrises a test."""
    if request.param in NAMES:
        yield request.getfixturevalue("running")
        return
    root = tmp_path_factory.mktemp(request.param)
    save(request.param, root)
    with omlx(registry=scan_places([Folder("test", root)]), default=request.param) as own:
        yield own


def families() -> list[Any]:
    return [
        pytest.param(name, name, marks=() if name in NAMES else pytest.mark.slow)
        for name in CONFIGS
    ]


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def fits(text: str) -> bool:
    value = json.loads(text)
    return value.keys() == {"city", "days"} and value["city"] in ("Oslo", "Rome")


@pytest.mark.parametrize(("server", "model"), families(), indirect=["server"])
def test_a_chat_a_tool_call_and_a_schema(server: Running, model: str) -> None:
    client = server.openai
    asked = {"model": model, "messages": user("What is the weather in Oslo?"), "seed": 5}
    chat = client.chat.completions.create(**asked, max_tokens=16)
    assert written(chat.choices[0].message)
    tool = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
    called = client.chat.completions.create(
        **asked,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
        reasoning_effort="none",
    ).choices[0]
    assert called.finish_reason == "tool_calls", called
    calls = called.message.tool_calls
    assert {call.function.name for call in calls} == {"weather"}
    assert all(fits(call.function.arguments) for call in calls)
    past = {"role": "assistant", "content": "", "tool_calls": [calls[0].model_dump()]}
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "Rain."}
    schema = {"type": "json_schema", "json_schema": {"name": "w", "schema": PARAMETERS}}
    held = client.chat.completions.create(
        **asked | {"messages": [*asked["messages"], past, result]},
        response_format=schema,
        max_tokens=300,
        reasoning_effort="none",
    ).choices[0]
    assert held.finish_reason == "stop"
    assert fits(held.message.content)


def written(message: Any) -> str:
    """Return the reasoning and the content of a message, or of a piece of one."""
    return (getattr(message, "reasoning_content", None) or "") + (message.content or "")


@pytest.mark.parametrize("model", NAMES)
def test_a_chat_is_the_same_streamed_and_with_drafts(running: Running, model: str) -> None:
    client = running.openai
    asked = {"model": model, "messages": user("Count to nine, then count to nine.")}
    asked |= {"max_tokens": 24, "seed": 3, "temperature": 0.8}
    plain = client.chat.completions.create(**asked, extra_body={"speculation": "off"})
    text = written(plain.choices[0].message)
    assert text
    stream = client.chat.completions.create(**asked, stream=True)
    assert "".join(written(part.choices[0].delta) for part in stream if part.choices) == text
    drafts = {"speculation": "ngram", "num_draft_tokens": 3}
    prediction = {"type": "content", "content": text}
    drafted = client.chat.completions.create(**asked, prediction=prediction, extra_body=drafts)
    assert written(drafted.choices[0].message) == text
    assert drafted.timings["draft_n"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "half"])
def test_a_head_in_the_shards_drafts_or_says_what_it_lacks(tmp_path: Path, whole: bool) -> None:
    save("glm5_next", tmp_path)
    save_head(tmp_path / "glm5_next", whole)
    asked = {"model": "glm5_next", "messages": user("Count."), "seed": 3, "max_tokens": 24}
    with omlx(registry=scan_places([Folder("test", tmp_path)]), default="glm5_next") as server:
        client = server.openai
        plain = client.chat.completions.create(**asked, extra_body={"speculation": "off"})
        text = written(plain.choices[0].message)
        drafts = {"speculation": "mtp", "num_draft_tokens": 2}
        if whole:
            drafted = client.chat.completions.create(**asked, extra_body=drafts)
            assert written(drafted.choices[0].message) == text
            assert drafted.timings["drafters"]["mtp"]["proposed"] > 0
        else:
            with pytest.raises(BadRequestError) as caught:
                client.chat.completions.create(**asked, extra_body=drafts)
            assert (caught.value.code, caught.value.param) == (
                "spec.off.head_weights",
                "speculation",
            )
            assert "norm" in caught.value.message
            assert written(client.chat.completions.create(**asked).choices[0].message) == text
        record = server.http.get("/v1/models/glm5_next").json()
        assert record["speculation"]["head"]["loaded"] is whole


def save_head(folder: Path, whole: bool) -> None:
    """Add a random head to the shard of its target, or what is left of one without its norms."""
    shard, target = folder / "model.safetensors", open_model(folder, "float32", trusted=False)[0]
    parts = parts_of(target)
    assert parts is not None
    config, _ = shard_head(json.loads((folder / "config.json").read_text())) or ({}, ())
    module = open_drafter(config, {}, parts)[0].module
    randomise(module, 1, 1.0)
    head = in_shards("glm5_next", weights_of(module))
    kept = {name: array for name, array in head.items() if whole or "norm" not in name}
    mx.save_safetensors(str(shard), mx.load(str(shard)) | kept)


def test_a_model_says_which_library_computes_it(running: Running) -> None:
    record = running.http.get("/v1/models/mimo_v2").json()
    assert record["library"] == f"mlx-vlm {version('mlx-vlm')}"
