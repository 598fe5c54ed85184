"""The benchmark of records: what it compares, and that it runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from lab.bench import recording
from lab.bench.__main__ import main
from lab.bench.http.server import Server, post, processor_seconds
from lab.bench.recording import Cost, Rates, body
from lab.bench.series import Series
from omlx.models.catalog.discovery import BUNDLED


def test_ratios_are_taken_within_trials() -> None:
    off = Rates(Series((100.0, 50.0, 80.0)), Series((10.0, 10.0, 10.0)))
    on = Rates(Series((90.0, 50.0, 88.0)), Series((9.0, 8.0, 10.0)))
    control = Rates(Series((100.0, 100.0, 80.0)), Series((10.0, 10.0, 5.0)))
    assert Cost(4, off, control, on).cells == (
        "4",
        "3",
        "80",
        "1.000 (1.000 to 2.000)",
        "0.900 (0.707 to 1.100)",
        "1.000 (0.500 to 1.000)",
        "0.900 (0.800 to 1.414)",
    )
    both = Cost(4, off, control, on) + Cost(4, off, control, on)
    assert both.cells[1] == "6"
    assert both.cells[2:] == Cost(4, off, control, on).cells[2:]


def test_every_stream_has_a_prompt_and_a_key_of_its_own() -> None:
    bodies = [body(trial, number, 9) for trial in range(2) for number in range(20)]
    assert len({json.dumps(one) for one in bodies}) == 40
    head, _, content = post("/v1", bodies[0], "Idempotency-Key: a").partition(b"\r\n\r\n")
    assert head.endswith(b"\r\nIdempotency-Key: a")
    assert json.loads(content) == bodies[0]
    assert b"Key" not in post("/v1", bodies[0])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_processor_time_is_read() -> None:
    assert 0 < processor_seconds(os.getpid()) < 1e6
    assert processor_seconds(-1) != processor_seconds(-1)  # not a number


@pytest.mark.slow
def test_all_servers_make_the_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, draft = (str(BUNDLED / "omlx-demo" / name) for name in ("target", "draft"))
    drafts = ("--draft", draft, "--speculation", "draft")
    size = ("--streams", "1,2", "--trials", "1", "--tokens", "70", "--json", str(tmp_path / "r"))
    size = (*size, "--rounds", "1")
    assert main(["recording", "--model", model, *drafts, *size]) == 0
    report = json.loads((tmp_path / "r").read_text())
    assert [cost["streams"] for cost in report["streams"]] == [1, 2]
    for side in ("off", "control", "on"):
        assert all(cost[side]["elapsed"]["median"] > 0 for cost in report["streams"])
    assert "on / off" in capsys.readouterr().out


@pytest.mark.parametrize("unknown", [False, True])
def test_a_calibrated_server_is_waited_for_until_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, unknown: bool
) -> None:
    spent = iter([math.nan] if unknown else [10.0, 11.9, 13.8, 13.9])
    monkeypatch.setattr(recording, "call", lambda *_: {"speculation": {"calibration": "done"}})
    monkeypatch.setattr(recording, "processor_seconds", lambda _: next(spent))
    monkeypatch.setattr(recording.time, "sleep", lambda _: None)
    recording.wait_until_calibrated(Server("omlx", 1, "m", 1))
    assert not list(spent)
