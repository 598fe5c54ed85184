"""Forced and strict calls of gpt-oss and MiniMax-M3 through the API, at random: the mask makes them
valid, and speculation changes none of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from openai import OpenAI

from omlx.models.catalog.discovery import BUNDLED, Registry
from omlx.models.catalog.registry import ModelEntry
from tests.lanes import few
from tests.server.dialects import user
from tests.server.running import TARGET, omlx
from tests.server.test_contract import FORCED as SCHEMAS
from tests.text.test_harmony import TEMPLATE

M3: Final = "]<]minimax[>["
FAMILIES: Final = {
    "gpt-oss": (
        TEMPLATE,
        [f"<|{name}|>" for name in ("call", "start", "end", "message", "channel", "constrain")],
    ),
    "minimax m3": (
        f"{{# {M3} <tool_call> #}}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        [M3],
    ),
}
"""By family: a chat template, and its markers, which stand in the place of tokens that the bundled
model has, the first one in that of `<|endoftext|>`, which ends generation.
"""
ASKED: Final[list[Any]] = user("Say something else.")


@pytest.fixture(scope="module", params=FAMILIES)
def client(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("models") / "model"
    shutil.copytree(BUNDLED / TARGET, folder)
    template, markers = FAMILIES[request.param]
    _rename_tokens(folder, template, markers)
    registry = Registry((ModelEntry("model", folder, "bundled"),))
    with omlx(registry=registry, default="model") as running:
        openai = running.openai
        yield openai


def _rename_tokens(folder: Path, template: str, markers: list[str]) -> None:
    body = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    spare = [token for token in body["added_tokens"] if token["content"] != config["eos_token"]]
    for number, token in enumerate(spare):
        token["content"] = markers[number] if number < len(markers) else f"<|spare {number}|>"
        token["special"] = True
    assert len(spare) >= len(markers)
    (folder / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": config["eos_token"],
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def ask(client: OpenAI, *, strict: bool = False, **fields: Any) -> Any:
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]
    fields = {"max_tokens": 120, "temperature": 1.0, "logprobs": True, **fields}
    return client.chat.completions.create(model="model", messages=ASKED, tools=tools, **fields)


def checked(choice: Any) -> int:
    """Return how many calls a choice made; all that ended are valid."""
    calls = choice.message.tool_calls or []
    if choice.finish_reason == "length":
        return 0
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    return len(calls)


NAMED: Final[Any] = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize("choice", few([NAMED, "required"], NAMED))
def test_a_forced_call_is_valid_with_any_speculation(client: OpenAI, choice: Any) -> None:
    for seed in range(2):
        fields: Any = {"seed": seed, "tool_choice": choice, "reasoning_effort": "none"}
        answers = [
            ask(client, **fields, extra_body={"speculation": speculation}).choices[0]
            for speculation in ("off", "auto")
        ]
        tokens = [[entry.token for entry in answer.logprobs.content] for answer in answers]
        assert tokens[0] == tokens[1]
        assert checked(answers[0]) >= (choice != "required")
        assert not answers[0].message.content


@pytest.mark.slow
def test_strict_functions_leave_answers_free(client: OpenAI) -> None:
    for speculation in ("off", "auto"):
        answer = ask(client, strict=True, n=4, seed=1, extra_body={"speculation": speculation})
        for each in answer.choices:
            checked(each)
