"""Receipts and `omlx verify`: answers made in company, with speculation, decoded again alone."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from anthropic import Anthropic
from openai import OpenAI

from omlx.cli.main import main
from omlx.models.catalog.discovery import BUNDLED
from omlx.settings.schema import Settings
from tests.cli.inside import Capture
from tests.server.running import DRAFT, HYBRID, PATIENCE_S, TARGET, omlx
from tests.storage import homes

Json: TypeAlias = dict[str, Any]
QUESTION = "Write a function that adds two numbers, and call it three times."
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
FORMS: dict[str, Json] = {
    "greedy": {"temperature": 0},
    "warm": {"temperature": 1},
    "filtered": {"temperature": 1, "top_p": 0.8, "top_k": 30, "min_p": 0.02},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
    "choices": {"temperature": 1, "n": 2},
    "stopped": {"temperature": 0, "stop": ["e"]},
    "endless": {"temperature": 0, "ignore_eos": True},
    "forced": {"tools": [TOOL], "tool_choice": "required", "temperature": 0.5},
    "schema": {
        "response_format": FORMAT,
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.5,
    },
    "budgeted": {"thinking_budget": 5, "temperature": 0.7},
    "hybrid": {"model": HYBRID, "temperature": 0.9},
}


def question(form: str, seed: int, tokens: int = 40) -> Json:
    """The body of a chat request."""
    base = {"model": TARGET, "messages": [{"role": "user", "content": f"{QUESTION} ({seed})"}]}
    given = {"max_tokens": tokens, "seed": seed, "receipt": True, "num_draft_tokens": 3}
    return {**base, **given, **FORMS[form]}


@dataclass(frozen=True)
class Kept:
    """A home with kept answers: the responses by name."""

    home: Path
    responses: dict[str, Json]

    def id(self, name: str) -> str:
        return str(self.responses[name]["receipt"]["choices"][0]["id"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Answers of all forms, made at the same time with drafts, over every API."""
    home = tmp_path_factory.mktemp("home")
    with omlx(Settings(home=home, draft_model=DRAFT)) as running:
        names = [*FORMS, "completion", "message", "response", "stream"]
        client = OpenAI(base_url=f"{running.url}/v1", api_key="-", timeout=PATIENCE_S)
        warm = Anthropic(base_url=running.url, api_key="-", timeout=PATIENCE_S)
        messages = [{"role": "user", "content": QUESTION}]
        extra = {"receipt": True, "seed": 8}

        def ask(name: str) -> Json:
            made: Any
            if name == "completion":
                made = client.completions.create(
                    model=TARGET, prompt="def add(", max_tokens=24, seed=3, extra_body=extra
                )
            elif name == "message":
                made = warm.messages.create(
                    model=TARGET, messages=messages, max_tokens=24, extra_body=extra
                )
            elif name == "response":
                made = client.responses.create(
                    model=TARGET, input=QUESTION, max_output_tokens=24, extra_body=extra
                )
            elif name == "stream":
                *_, made = client.chat.completions.create(
                    model=TARGET, messages=messages, max_tokens=24, stream=True, extra_body=extra
                )
            else:
                body = question(name, len(name))
                answer = httpx.post(
                    f"{running.url}/v1/chat/completions", json=body, timeout=PATIENCE_S
                )
                assert answer.status_code == 200, answer.text
                record: Json = answer.json()
                return record
            record = made.model_dump()
            return record

        with ThreadPoolExecutor(len(names)) as threads:
            responses = dict(zip(names, threads.map(ask, names), strict=True))
    return Kept(home, responses)


@pytest.fixture
def verify(kept: Kept, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command in this process; return its status and its records."""
    monkeypatch.setenv("OMLX_HOME", str(kept.home))

    def run(*arguments: str) -> tuple[int, list[Json]]:
        status = main(["verify", "--json", *arguments])
        return status, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def altered(kept: Kept) -> Iterator[Callable[[str, Callable[[Json], object]], None]]:
    """Change a kept answer; afterwards it is as before."""
    before: dict[str, Json] = {}

    def change(name: str, edit: Callable[[Json], object]) -> None:
        id = kept.id(name)
        before[id] = homes.receipt(kept.home, id)
        homes.alter(kept.home, id, edit)

    yield change
    for id, content in before.items():
        homes.alter(kept.home, id, lambda now, content=content: now.update(content))


def codes(record: Json) -> list[str]:
    return [reason["code"] for reason in record["reasons"]]


def test_answers_made_in_company_with_drafts_are_those_of_plain_decoding(
    kept: Kept, verify: Callable[..., Any]
) -> None:
    accepted = [kept.responses[form]["timings"]["draft_n_accepted"] for form in FORMS]
    assert sum(accepted) > 0
    status, records = verify(*[response["id"] for response in kept.responses.values()])
    assert [codes(record) for record in records if not record["same"]] == []
    assert status == 0
    assert len(records) == len(kept.responses) + 1  # one has two choices
    assert sum(record["tokens"] for record in records) > 200


def test_a_receipt_names_what_the_tokens_depend_on(kept: Kept) -> None:
    receipt = kept.responses["choices"]["receipt"]
    assert receipt["model"] == TARGET
    assert receipt["seed"] == len("choices")
    assert set(receipt["versions"]) >= {"omlx", "mlx", "mlx-lm"}
    assert [choice["id"][-2:] for choice in receipt["choices"]] == ["-0", "-1"]
    first, second = receipt["choices"]
    assert first["prompt"] == second["prompt"]
    assert first["answer"] != second["answer"]
    content = homes.receipt(kept.home, kept.id("choices"))["answer"]
    for name in ("prompt", "answer"):
        ids = b"".join(token.to_bytes(8, "little") for token in content[name])
        assert sha256(ids).hexdigest() == first[name]


def test_kept_answers_are_private(kept: Kept) -> None:
    assert stat.S_IMODE((kept.home / "omlx.sqlite").stat().st_mode) == 0o600
    assert len(homes.rows(kept.home, "select id from receipts")) == len(kept.responses) + 1


def test_the_receipt_of_a_response_is_enough(
    kept: Kept, verify: Callable[..., Any], tmp_path: Path
) -> None:
    whole, alone = tmp_path / "response.json", tmp_path / "receipt.json"
    whole.write_text(json.dumps(kept.responses["choices"]))
    alone.write_text(json.dumps(kept.responses["warm"]["receipt"]))
    status, records = verify(str(whole), str(alone))
    assert status == 0
    assert [codes(record) for record in records] == [["verify.identical"]] * 3


def test_an_altered_receipt_is_refused_by_field(
    kept: Kept, verify: Callable[..., Any], tmp_path: Path
) -> None:
    values = {"seed": 1, "tokens": 1, "answer": "0" * 64, "weights": "0" * 64}
    paths = []
    for field, value in values.items():
        receipt = json.loads(json.dumps(kept.responses["warm"]["receipt"]))
        place = receipt if field in receipt else receipt["choices"][0]
        place[field] = value
        paths.append(tmp_path / f"{field}.json")
        paths[-1].write_text(json.dumps(receipt))
    status, records = verify(*map(str, paths))
    assert status == 1
    refused = [record["reasons"][0] for record in records]
    assert {reason["code"] for reason in refused} == {"verify.contradicts"}
    assert [reason["params"]["field"] for reason in refused] == list(values)


def rehashed(content: Json) -> None:
    """Make the receipt of a kept answer agree with its ids."""
    ids = b"".join(token.to_bytes(8, "little") for token in content["answer"]["answer"])
    content["receipt"] |= {
        "answer": sha256(ids).hexdigest(),
        "tokens": len(content["answer"]["answer"]),
    }


def one_token(content: Json) -> None:
    content["answer"]["answer"][9] += 1


def first_token(content: Json) -> None:
    content["answer"]["answer"][0] += 1


def foreign_token(content: Json) -> None:
    content["answer"]["answer"][2] = 1 << 40


def cut(content: Json) -> None:
    del content["answer"]["answer"][-3:]


def twice(content: Json) -> None:
    content["answer"]["answer"] *= 2


ALTERED = {
    "filtered": (one_token, "verify.differs"),
    "schema": (first_token, "verify.impossible"),
    "greedy": (foreign_token, "verify.impossible"),
    "endless": (cut, "verify.cut_off"),
    "warm": (cut, "verify.no_end"),
    "message": (twice, "verify.runs_on"),
}


def test_an_altered_answer_fails_though_its_hash_agrees(
    kept: Kept, verify: Callable[..., Any], altered: Callable[..., None]
) -> None:
    def edit(name: str) -> Callable[[Json], None]:
        def change(content: Json) -> None:
            ALTERED[name][0](content)
            rehashed(content)

        return change

    for name in ALTERED:
        altered(name, edit(name))
    status, records = verify(*[kept.responses[name]["id"] for name in ALTERED])
    assert status == 1
    assert [record["same"] for record in records] == [False] * len(ALTERED)
    for record, (_, code) in zip(records, ALTERED.values(), strict=True):
        assert code in codes(record)
        assert "verify.contradicts" not in codes(record)
    assert records[0]["difference"]["place"] == 9
    assert records[0]["difference"]["margin"] > records[0]["tolerance"]


def test_another_seed_gives_another_answer(
    kept: Kept, verify: Callable[..., Any], altered: Callable[..., None]
) -> None:
    def edit(content: Json) -> None:
        content["answer"]["sampling"]["seed"] += 1
        content["receipt"]["seed"] += 1

    altered("warm", edit)
    status, (record,) = verify(kept.responses["warm"]["id"])
    assert status == 1
    assert record["reasons"][0]["params"] == {"field": "settings"}
    assert "verify.differs" in codes(record)


def test_a_damaged_answer_and_unknown_ids_are_named(
    kept: Kept,
    altered: Callable[..., None],
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("OMLX_HOME", str(kept.home))
    altered("warm", lambda content: content.pop("answer"))
    other = tmp_path / "other.json"
    other.write_text("[]")
    for name in (kept.responses["warm"]["id"], "chatcmpl-unknown", "../secret", str(other)):
        assert main(["verify", name]) == 2
        assert name in capsys.readouterr().err


def flip_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(reversed(content[middle : middle + 64]))
    path.write_bytes(content)


def edit_template(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] += " "
    path.write_text(json.dumps(config))


def edit_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text() + "\n")


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (flip_weights, "verify.other_weights"),
        (edit_template, "verify.other_template"),
        (edit_tokenizer, "verify.other_tokenizer"),
    ],
)
def test_another_model_fails_and_says_what_is_other(
    kept: Kept,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    edit: Callable[[Path], None],
    code: str,
) -> None:
    models = tmp_path / "models"
    shutil.copytree(BUNDLED / TARGET, models / TARGET)
    edit(models / TARGET)
    monkeypatch.setenv("OMLX_HOME", str(kept.home))
    flags = ["--json", "--model-dir", str(models), "--no-bundled"]
    status = main(["verify", *flags, kept.responses["warm"]["id"]])
    (record,) = json.loads(capsys.readouterr().out)
    assert status == 1
    assert codes(record) == [code]


def test_the_setting_gives_every_answer_a_receipt_unless_the_request_refuses(
    tmp_path: Path,
) -> None:
    with (
        omlx(Settings(home=tmp_path, receipt=True)) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE_S) as http,
    ):
        body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 2}
        answers = [
            http.post("/v1/chat/completions", json=body | more).json()
            for more in ({}, {"receipt": False})
        ]
    assert ["receipt" in answer for answer in answers] == [True, False]
    assert len(homes.rows(tmp_path, "select id from receipts")) == 1


@pytest.mark.slow
def test_a_thousand_answers_in_company_verify(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = [form for form in FORMS if form != "choices"]
    with (
        omlx(Settings(home=tmp_path, draft_model=DRAFT)) as running,
        httpx.Client(base_url=running.url, timeout=10 * PATIENCE_S) as http,
        ThreadPoolExecutor(8) as threads,
    ):

        def ask(number: int) -> Json:
            body = question(forms[number % len(forms)], number, tokens=24)
            made = http.post("/v1/chat/completions", json=body)
            assert made.status_code == 200, made.text
            record: Json = made.json()
            return record

        responses = list(threads.map(ask, range(1000)))
    monkeypatch.setenv("OMLX_HOME", str(tmp_path))
    status = main(["verify", "--json", *[response["id"] for response in responses]])
    records = json.loads(capsys.readouterr().out)
    ties = [tie for record in records for tie in record["near_ties"]]
    accepted = sum(response["timings"]["draft_n_accepted"] for response in responses)
    tokens = sum(record["tokens"] for record in records)
    with capsys.disabled():
        sys.stdout.write(f"{len(records)} answers, {tokens} tokens, {accepted} accepted, {ties}\n")
    assert [codes(record) for record in records if not record["same"]] == []
    assert status == 0
    assert accepted > 1000
