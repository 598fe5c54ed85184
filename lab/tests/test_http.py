"""`python -m lab.bench http`: streams over HTTP against the engine alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from lab.bench.http import command
from lab.bench.http.command import StreamRates
from lab.bench.http.server import count_tokens
from lab.bench.series import Series
from omlx.models.catalog.discovery import BUNDLED


def test_neighbours_in_time_are_compared() -> None:
    rates = StreamRates(4, http=Series((90.0, 50.0, 99.0)), engine=Series((100.0, 100.0, 100.0)))
    assert rates.ratio.values == (0.9, 0.5, 0.99)
    assert rates.to_json()["ratio"] == 0.9
    assert "0.900" in command.to_text([rates], [0.001, 0.002, 0.004])


def test_a_stream_without_an_end_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        count_tokens(b'data: {"timings": {"predicted_n": 3}}\n\n')
    assert count_tokens(b'data: {"timings": {"predicted_n": 3}}\n\ndata: [DONE]\n\n') == 3


def test_both_sides_make_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    model = ("--model", str(BUNDLED / "omlx-demo/draft"))
    size = ("--streams", "1,3", "--trials", "1", "--tokens", "12")
    file = tmp_path / "r.json"
    assert command.run(parser.parse_args([*model, *size, "--json", str(file)])) == 0
    report = json.loads(file.read_text())
    assert [rates["streams"] for rates in report["streams"]] == [1, 3]
    for rates in report["streams"]:
        assert rates["http"][0] > 0
        assert rates["engine"][0] > 0
    assert "HTTP / engine" in capsys.readouterr().out
