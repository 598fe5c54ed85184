"""Speculation as clients request it and see it: official client, real server, bundled models."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion

from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.settings.schema import Settings
from tests import zoo
from tests.server.dialects import user
from tests.server.running import DEMO, DRAFT, TARGET, omlx
from tests.zoo.build import save_family

ASK: list[Any] = user("Say hello, then count.")
NGRAM = {"speculation": "ngram", "num_draft_tokens": 4}
CHAT = "/v1/chat/completions"


def chat(client: OpenAI, **fields: Any) -> ChatCompletion:
    return client.chat.completions.create(
        **{"model": TARGET, "messages": ASK, "max_tokens": 40, "seed": 3, **fields}
    )


def text(answer: ChatCompletion, choice: int = 0) -> str:
    return answer.choices[choice].message.content or ""


def timings(answer: ChatCompletion) -> dict[str, Any]:
    record: dict[str, Any] = answer.timings
    return record


def accepted(answer: ChatCompletion) -> int:
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    return answer.usage.completion_tokens_details.accepted_prediction_tokens or 0


def test_the_answer_as_its_own_prediction_is_accepted(client: OpenAI) -> None:
    plain = chat(client, extra_body={"speculation": "off"})
    assert accepted(plain) == 0
    assert len(text(plain)) > 20
    without = chat(client, extra_body=NGRAM)
    parts = [{"type": "text", "text": text(plain)[:10]}, {"type": "text", "text": text(plain)[10:]}]
    for content in (text(plain), parts):
        answer = chat(client, prediction={"type": "content", "content": content}, extra_body=NGRAM)
        assert text(answer) == text(without) == text(plain)
        assert accepted(answer) > accepted(without)
        drafter = timings(answer)["drafters"]["ngram"]
        assert drafter["accepted"] == accepted(answer) == sum(drafter["accepted_at"])
        assert drafter["proposed"] >= drafter["accepted"] >= drafter["accepted_at"][0] > 0
        assert (
            sum(drafter["spans"].values()) == sum(drafter["repairs"].values()) == drafter["rounds"]
        )
        assert drafter["verify_ms"] > 0


def test_a_prediction_serves_every_choice(client: OpenAI) -> None:
    plain = chat(client, n=2, temperature=0.7, extra_body={"speculation": "off"})
    prediction = {"type": "content", "content": text(plain, 1)}
    answer = chat(client, n=2, temperature=0.7, prediction=prediction, extra_body=NGRAM)
    assert [text(answer, i) for i in range(2)] == [text(plain, i) for i in range(2)]


def test_an_unused_prediction_is_reported(client: OpenAI) -> None:
    fields = {
        "prediction": {"type": "content", "content": "x"},
        "extra_body": {"speculation": "draft"},
    }
    (note,) = timings(chat(client, max_tokens=2, **fields))["speculation"]["notes"]
    assert note["code"] == "strategy.prediction_unused"
    assert note["params"] == {"strategy": "draft"}
    fields["extra_body"] = {"speculation": "off"}
    record = timings(chat(client, max_tokens=2, **fields))["speculation"]
    assert (record["code"], record["notes"]) == ("spec.off.requested", [])


def test_a_prediction_longer_than_the_context_is_refused(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        chat(client, prediction={"type": "content", "content": "word " * 6000})
    assert (caught.value.code, caught.value.param) == ("request.prediction_too_long", "prediction")


def test_no_drafter_ran_is_not_nothing_accepted(client: OpenAI) -> None:
    off = timings(chat(client, extra_body={"speculation": "off"}))
    assert (off["drafters"], off["draft_n"], off["speculation"]["strategy"]) == ({}, 0, "off")
    assert off["speculation"]["code"] == "spec.off.requested"
    window = timings(chat(client, extra_body={"num_draft_tokens": 0}))
    assert (window["drafters"], window["speculation"]["code"]) == ({}, "spec.off.zero_window")
    on = timings(chat(client, extra_body={"speculation": "draft", "num_draft_tokens": 3}))
    assert (on["speculation"]["code"], on["speculation"]["strategy"]) == ("spec.on", "draft")
    assert on["speculation"]["gates"] == {DRAFT: {"state": "on", "reason": None}}
    assert on["drafters"][DRAFT]["draft_ms"] > 0


def test_another_products_names_are_read_and_the_answer_says_how(client: OpenAI) -> None:
    record = timings(
        chat(client, max_tokens=2, extra_body={"speculation": "ngram-simple:m=8;draft"})
    )["speculation"]
    assert record["strategy"] == "ngram:m=8;draft"
    assert [note["code"] for note in record["notes"]] == ["strategy.read_as"]


def test_settings_are_the_default_of_requests() -> None:
    settings = Settings(speculation="ngram", draft_model=DRAFT, num_draft_tokens=2)
    with omlx(settings) as running:
        client = running.openai
        record = timings(chat(client))
        assert record["speculation"]["strategy"] == "ngram"
        assert set(record["drafters"]) <= {"ngram"}
        assert all(len(each["accepted_at"]) <= 2 for each in record["drafters"].values())
        wide = timings(chat(client, extra_body={"num_draft_tokens": 6, "speculation": "draft"}))
        assert len(wide["drafters"][DRAFT]["accepted_at"]) > 2


def test_the_status_of_a_model_says_what_is_configured_in_effect_and_measured(
    client: OpenAI, http: httpx.Client
) -> None:
    chat(client, extra_body={"num_draft_tokens": 3})
    chat(client)
    body = http.get(f"/v1/models/{TARGET}").json()
    record = body["speculation"]
    assert body["loaded"] is True
    assert body["batching"] == {"batchable": True, "reason": None}
    assert (record["configured"], record["source"], record["effective"]) == (
        "auto",
        "built_in",
        "auto",
    )
    assert (record["draft"], record["draft_source"], record["reason"]) == (DRAFT, "cli", None)
    # Others too, if answers of this server had a form.
    assert set(record["drafters"]) >= {"ngram", DRAFT}
    drafter = record["drafters"][DRAFT]
    assert drafter["state"] in ("observing", "on", "off")
    assert sum(drafter["states"].values()) >= 2
    assert drafter["acceptance"] == sorted(drafter["acceptance"], reverse=True)
    table = record["costs"]["target"]
    assert table["contexts"][0] == 256
    assert len(table["ms"]) == len(table["widths"])
    assert all(len(row) == len(table["contexts"]) for row in (*table["ms"], table["plain_ms"]))
    assert table["plain_ms"][0] > 0
    assert record["speedup"] is None or record["speedup"] > 0
    assert record["calibration"] == "off"


def test_the_status_of_a_model_that_is_not_loaded_knows_nothing_it_has_not_seen(
    http: httpx.Client,
) -> None:
    http.post(f"/v1/models/{DRAFT}/unload")
    body = http.get(f"/v1/models/{DRAFT}").json()
    record = body["speculation"]
    assert (body["loaded"], body["batching"]) == (False, None)
    assert (record["configured"], record["effective"], record["speedup"], record["costs"]) == (
        "auto",
        None,
        None,
        None,
    )
    assert record["calibration"] is None
    assert record["reason"]["code"] == "draft.unfit.same_model"


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server with a model whose cache cannot be rolled back."""
    folder = Path(
        shutil.copytree(
            DEMO.get_usable(DRAFT).path, tmp_path_factory.mktemp("models") / "t" / "stuck"
        )
    )
    save_family(zoo.FAMILIES["plamo3"], folder)
    registry = Registry((ModelEntry("t/stuck", folder, "model_dir"), *DEMO.entries))
    with omlx(Settings(draft_model=DRAFT), registry=registry) as running:
        yield running.http


# In transformers, of that model.
@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
def test_a_model_without_speculation_reports_why(stuck: httpx.Client) -> None:
    ask = {"model": "t/stuck", "messages": ASK, "max_tokens": 4}
    for wish in ("draft", "ngram", "ngram;draft"):
        answer = stuck.post(CHAT, json={**ask, "speculation": wish})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (
            400,
            "spec.off.inconsistent",
            "speculation",
        )
    record = stuck.post(CHAT, json=ask).json()["timings"]
    assert (record["speculation"]["code"], record["speculation"]["strategy"]) == (
        "spec.off.inconsistent",
        "off",
    )
    status = stuck.get("/v1/models/t/stuck").json()["speculation"]
    assert (status["configured"], status["effective"]) == ("auto", "off")
    assert status["reason"]["code"] == "spec.off.inconsistent"
