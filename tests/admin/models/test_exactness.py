"""How exact a model is, over HTTP: measured on request, promised where the setting is strict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from omlx.cli.main import main
from omlx.engine.speculation.cost_model import CostModel
from omlx.errors import ModelError
from omlx.exactness import WINDOWS
from omlx.models.pool.exactness import exactness_steps
from omlx.settings.schema import Settings
from tests.admin.running import API, Administered
from tests.server.running import DRAFT, PATIENCE_S, TARGET, omlx

PATH = f"{API}/models/{TARGET}/exactness"


def status(client: httpx.Client) -> dict[str, Any]:
    record: dict[str, Any] = client.get(f"/v1/models/{TARGET}").json()["exactness"]
    return record


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


def test_the_button_measures_a_model_and_the_page_says_what_was_found(
    server: Administered,
) -> None:
    with server.browser() as client:
        before = client.get(f"/admin/parts/exactness/{TARGET}").text
        assert "Not measured yet" in before
        measured = client.post(PATH)
        assert measured.status_code == 200, measured.text
        assert status(client) == {"setting": "ties", "measured": measured.json()}
        page = client.get(f"/admin/models/{TARGET}").text
    assert f"up to {measured.json()['width']} tokens" in page
    assert 'id="exactness-measure"' in page


def test_without_a_session_nothing_is_measured(server: Administered) -> None:
    assert httpx.post(f"{server.running.url}{PATH}").status_code in (401, 403)


def test_the_doctor_prints_a_table_and_keeps_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMLX_HOME", str(tmp_path))
    assert main(["doctor", "--exact", TARGET]) == 0
    lines = capsys.readouterr().out.splitlines()
    windows = [line.split("  ")[0] for line in lines[1:16]]
    assert windows == [f"window of {n} tokens" for n in WINDOWS]
    assert lines[-1].startswith("Equal to single steps up to ")
    (kept,) = (tmp_path / "costs").iterdir()
    assert '"exactness"' in kept.read_text()


def test_a_model_in_stages_cannot_be_measured() -> None:
    class Staged:
        """What is looked at of a model in stages: that it is one."""

        stage = object()

    staged: Any = Staged()
    with pytest.raises(ModelError, match="Set exactness to ties"):
        next(exactness_steps("m", staged, CostModel(), 512))
