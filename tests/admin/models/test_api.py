"""Unloading over HTTP: refused with the reason while the model is needed, unless it may wait."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.cli.main import main
from omlx.engine.speculation.cost_model import CostModel
from omlx.errors import ModelError
from omlx.exactness import WINDOWS
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import Registry
from omlx.models.pool.load_weights import exactness_steps
from omlx.models.pool.served import State
from omlx.settings.schema import Settings
from omlx.settings.store import Store
from tests.admin.running import API, Administered, administered, change
from tests.models.vision.folders import save_vlm
from tests.server.running import DEMO, DRAFT, HYBRID, PATIENCE_S, TARGET, omlx
from tests.storage import homes

CHAT = "/v1/chat/completions"
UNLOAD = f"{API}/models/{TARGET}/unload"


def test_a_model_in_use_is_unloaded_only_after_its_requests(server: Administered) -> None:
    body = {"model": TARGET, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    pool = server.running.pool
    with server.browser() as client, server.browser() as other:
        assert client.post(f"{API}/models/{TARGET}/load").status_code == 200
        body |= {"max_tokens": 3900, "logit_bias": server.running.endless(), "speculation": "off"}
        # More than the buffers between them hold: unread, the answer cannot end.
        body |= {"logprobs": True, "top_logprobs": 20}
        with client.stream("POST", CHAT, json=body) as answer:
            assert answer.status_code == 200
            next(answer.iter_lines())
            refused = other.post(UNLOAD, json={"if_idle": True})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model.in_use")
            assert refused.json()["error"]["params"] == {"model": TARGET, "active": 1}
            assert pool.status(TARGET).state is State.READY
            unloading = threading.Thread(target=other.post, args=(UNLOAD,))
            unloading.start()
        unloading.join()
        assert pool.status(TARGET).state is State.UNLOADED
        assert other.post(UNLOAD, json={"if_idle": True}).status_code == 200  # nothing to do


def test_a_model_is_not_unloaded_during_its_trial(server: Administered) -> None:
    with server.browser() as client:
        trial = {"drafts": [DRAFT], "kinds": ["prose"]}
        assert client.post(f"{API}/models/{TARGET}/trial", json=trial).status_code == 202
        refused = client.post(UNLOAD)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "trial.unload")
        public = httpx.post(f"{server.running.url}/v1/models/{TARGET}/unload")
        assert (public.status_code, public.json()["error"]["code"]) == (409, "trial.unload")
        overview = client.get("/admin/parts/overview").text
        assert 'id="trial"' in overview
        assert f'href="/admin/models/{TARGET}' in overview
        assert client.post(f"{API}/models/{DRAFT}/unload").status_code == 200
        client.post(f"{API}/models/{TARGET}/trial/cancel")
        assert 'id="trial"' not in client.get("/admin/parts/overview").text
        assert httpx.post(f"{server.running.url}/v1/models/{TARGET}/unload").status_code == 200


def test_a_pinned_model_is_loaded_at_once_and_at_start(tmp_path: Path) -> None:
    Store(tmp_path).patch({"pinned": True}, TARGET)
    with administered(tmp_path, default=None) as server, server.browser() as client:
        pool = server.running.pool
        assert pool.status(TARGET).state is not State.UNLOADED
        assert pool.status(HYBRID).state is State.UNLOADED
        change(client, f"models/{HYBRID}/settings", pinned=True)
        assert pool.status(HYBRID).state is not State.UNLOADED
        for model in (TARGET, HYBRID):
            assert client.post(f"{API}/models/{model}/load").status_code == 200
            assert pool.status(model).pinned
        assert client.post(UNLOAD).status_code == 200
        change(client, f"models/{DRAFT}/settings", pinned=None)
        assert pool.status(TARGET).state is State.UNLOADED  # until the next start


PROMPT = "Name three rivers of Europe, and the seas that they flow into."


def path(model: str, action: str = "") -> str:
    return f"{API}/models/{model}/prefixes{action}"


def ask(client: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def probe(client: httpx.Client, model: str, prompt: str = PROMPT) -> dict[str, Any]:
    answer = client.post(path(model, "/probe"), json={"prompt": prompt})
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def part(client: httpx.Client, model: str) -> str:
    answer = client.get(f"/admin/parts/prefixes/{model}")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_cached_prompt_is_found_until_the_cache_is_cleared(server: Administered) -> None:
    with server.browser() as client:
        ask(client, TARGET)
        record = probe(client, TARGET)
        assert record["model"] == TARGET
        assert record["cached_tokens"] == record["prompt_tokens"] - 1
        assert probe(client, TARGET, "Something else.")["cached_tokens"] < record["cached_tokens"]
        assert 'value="0"' not in part(client, TARGET)
        assert client.delete(path(TARGET)).status_code == 204
        assert probe(client, TARGET)["cached_tokens"] == 0
        assert 'value="0"' in part(client, TARGET)


def test_recurrent_states_are_shown_for_models_that_have_them(server: Administered) -> None:
    with server.browser() as client:
        ask(client, HYBRID)
        assert "Recurrent states" in part(client, HYBRID)
        ask(client, TARGET)
        assert "Recurrent states" not in part(client, TARGET)


def test_a_model_that_is_not_in_memory_has_no_cache(server: Administered) -> None:
    with server.browser() as client:
        record = probe(client, DRAFT)
        assert record["prompt_tokens"] > 0
        assert record["cached_tokens"] is None
        assert client.delete(path(DRAFT)).status_code == 204
        assert "not loaded" in part(client, DRAFT)


@pytest.mark.parametrize(
    "body", [{}, {"prompt": ""}, {"prompt": 3}, {"prompt": "a", "model": DRAFT}]
)
def test_an_invalid_prompt_is_refused_with_its_field(
    server: Administered, body: dict[str, Any]
) -> None:
    with server.browser() as client:
        answer = client.post(path(TARGET, "/probe"), json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in ("prompt", "model")


def test_an_unknown_model_is_not_found(server: Administered) -> None:
    with server.browser() as client:
        assert client.delete(path("omlx-demo/none")).status_code == 404
        assert (
            client.post(path("omlx-demo/none", "/probe"), json={"prompt": "Hi"}).status_code == 404
        )


PATH = f"{API}/models/{TARGET}/exactness"


def status(client: httpx.Client) -> dict[str, Any]:
    record: dict[str, Any] = client.get(f"/v1/models/{TARGET}").json()["exactness"]
    return record


@pytest.mark.slow
def test_a_strict_model_is_measured_when_it_is_loaded_and_its_receipts_say_so(
    tmp_path: Path,
) -> None:
    settings = Settings(home=tmp_path, exactness="strict", draft_model=DRAFT, dtype="bfloat16")
    body = {
        "model": TARGET,
        "messages": [{"role": "user", "content": "Count to five."}],
        "max_tokens": 12,
        "receipt": True,
        "speculation": "draft",
    }
    with (
        omlx(settings) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE_S) as client,
    ):
        answer = client.post("/v1/chat/completions", json=body).json()
        known = status(client)
    width, rows = known["measured"]["width"], known["measured"]["batch"]
    assert known["setting"] == "strict"
    assert set(known["measured"]["windows"]) == {str(width) for width in WINDOWS}
    claim = f"strict, equal up to {width} tokens and {rows} rows"
    assert answer["receipt"]["exactness"] == claim
    drafted = answer["timings"]["draft_n"]
    assert (drafted > 0) == (width > 1)


def test_the_button_measures_a_model_and_the_page_says_what_was_found(server: Administered) -> None:
    with server.browser() as client:
        before = client.get(f"/admin/parts/exactness/{TARGET}").text
        assert "Not measured yet" in before
        measured = client.post(PATH)
        assert measured.status_code == 200, measured.text
        assert status(client) == {"setting": "ties", "measured": measured.json()}
        page = client.get(f"/admin/models/{TARGET}").text
    assert f"up to {measured.json()['width']} tokens" in page
    assert 'id="exactness-measure"' in page


@pytest.mark.slow
def test_the_doctor_prints_a_table_and_keeps_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMLX_HOME", str(tmp_path))
    assert main(["doctor", "--exact", TARGET]) == 0
    lines = capsys.readouterr().out.splitlines()
    windows = [line.split("  ")[0] for line in lines[1:16]]
    assert windows == [f"window of {n} tokens" for n in WINDOWS]
    assert lines[-1].startswith("Equal to single steps up to ")
    (kept,) = homes.measured(tmp_path, "costs").values()
    assert kept["costs"]["exactness"] is not None


def test_a_model_in_stages_cannot_be_measured() -> None:
    class Staged:
        """What is looked at of a model in stages: that it is one."""

        stage = object()

    staged: Any = Staged()
    with pytest.raises(ModelError, match="Set exactness to ties"):
        next(exactness_steps("m", staged, CostModel(), 512))


pytestmark = pytest.mark.needs_extra


def test_a_model_that_sees_shows_its_tower_and_one_that_does_not_why(tmp_path: Path) -> None:
    save_vlm("smolvlm", tmp_path / "models" / "smolvlm")
    entry = inspect_checkpoint("smolvlm", tmp_path / "models" / "smolvlm", "test")
    registry = Registry((*DEMO.entries, entry))
    with (
        administered(tmp_path / "home", registry, "smolvlm") as running,
        running.browser() as client,
    ):
        page = client.get("/admin/models").text
        assert page.count("reads images") == 1
        before = client.get("/v1/models/smolvlm").json()["vision"]
        assert before == {"on": True, "reason": None, "tower_bytes": None}
        body = {"model": "smolvlm", "prompt": "a", "max_tokens": 1}
        assert client.post("/v1/completions", json=body).status_code == 200
        shown = client.get("/admin/models/smolvlm").text
        assert re.search(r"reads images</span>\s*<span>vision tower \d", shown)
        vision = client.get("/v1/models/smolvlm").json()["vision"]
        assert vision["on"]
        assert vision["tower_bytes"] > 0
        text = client.get(f"/v1/models/{TARGET}").json()["vision"]
        assert text["reason"]["code"] == "vision.off.text"


def test_vision_that_is_off_says_so(tmp_path: Path) -> None:
    save_vlm("smolvlm", tmp_path / "models" / "smolvlm")
    entry = inspect_checkpoint("smolvlm", tmp_path / "models" / "smolvlm", "test")
    registry = Registry((*DEMO.entries, entry))
    with (
        administered(tmp_path / "home", registry, "smolvlm", vision=False) as running,
        running.browser() as client,
    ):
        shown = client.get("/admin/models/smolvlm").text
        assert "Vision is turned off in the settings of this model." in shown
        assert "reads images" not in shown
        vision = client.get("/v1/models/smolvlm").json()["vision"]
        assert vision["reason"]["code"] == "vision.off.setting"
