from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from omlx.bench.http import command, streams
from omlx.bench.http.command import Compared
from omlx.models.catalog.discovery import BUNDLED


def test_neighbours_in_time_are_compared() -> None:
    found = Compared(4, http=[90.0, 50.0, 99.0], engine=[100.0, 100.0, 100.0])
    assert found.ratios == [0.9, 0.5, 0.99]
    assert found.to_json()["ratio"] == 0.9
    assert "0.900" in command.to_text([found], [0.001, 0.002, 0.004])


def test_a_stream_without_an_end_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        streams._tokens(b'data: {"timings": {"predicted_n": 3}}\n\n')
    assert streams._tokens(b'data: {"timings": {"predicted_n": 3}}\n\ndata: [DONE]\n\n') == 3


def test_both_sides_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    flags = [
        "--model",
        str(BUNDLED / "omlx-demo/draft"),
        "--streams",
        "1,3",
        "--trials",
        "1",
        "--tokens",
        "12",
    ]
    assert command.run(parser.parse_args([*flags, "--json", str(tmp_path / "r.json")])) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert [each["streams"] for each in report["streams"]] == [1, 3]
    assert all(each["http"][0] > 0 and each["engine"][0] > 0 for each in report["streams"])
    assert "HTTP / engine" in capsys.readouterr().out
