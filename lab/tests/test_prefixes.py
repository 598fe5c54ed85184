"""`python -m lab.bench prefixes`: first tokens of prompts that are new, in memory, and on disk."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.bench import prefixes
from lab.bench.http.server import Server
from lab.bench.prefixes import FirstTokens, Time, continued, conversation, first_token
from omlx.models.catalog.discovery import BUNDLED
from tests.server.running import TARGET, omlx


def times(*seconds: float) -> list[Time]:
    return [Time(each, each / 2) for each in seconds]


def test_shares_are_medians_within_trials() -> None:
    cold, memory, disk = times(1.0, 2.0, 4.0), times(0.1, 0.1, 0.1), times(0.1, 0.4, 0.4)
    first = FirstTokens(4000, cold=cold, memory=memory, disk=disk)
    record: Any = first.to_json()
    assert (record["elapsed"]["memory_of_cold"], record["elapsed"]["disk_of_cold"]) == (0.05, 0.1)
    assert first.cells("elapsed")[:3] == ("4000", "elapsed", "2.000 s")
    assert first.cells("processor")[2] == "1.000 s"
    assert "5.0% (2.5% to 10.0%)" in first.cells("processor")
    record = FirstTokens(30_000, cold=times(100.0), memory=memory, disk=disk).to_json()
    assert record["elapsed"]["disk_of_cold"] == 0.004


def test_a_prefix_that_is_or_is_not_cached_against_expectation_ends_it() -> None:
    with omlx() as running:
        server = Server("omlx", httpx.URL(running.url).port or 0, TARGET, os.getpid())
        asked = conversation(server, 1, 900)
        assert 800 < len(server.tokens(asked)) < 1000
        with pytest.raises(RuntimeError, match="0% were cached"):
            first_token(server, asked)
        assert first_token(server, continued(asked, "And then?")).elapsed > 0
        with pytest.raises(RuntimeError, match=r"9\d% were cached"):
            first_token(server, continued(asked, "And now?"), cached=False)
        assert first_token(server, conversation(server, 2, 900), cached=False).elapsed > 0


@pytest.mark.slow
def test_each_process_reads_what_the_one_before_has_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    prefixes.add_arguments(parser)
    file, model = tmp_path / "r.json", str(BUNDLED / TARGET)
    flags = ("--model", model, "--tokens", "600,1200", "--trials", "1", "--json", str(file))
    assert prefixes.run(parser.parse_args(flags)) == 0
    prompts = json.loads(file.read_text())["prompts"]
    assert [prompt["tokens"] for prompt in prompts] == [1200, 600]
    assert all(len(prompt["elapsed"]["disk_s"]) == 1 for prompt in prompts)
    assert "load of the machine" in capsys.readouterr().out
    too_long = ("--model", model, "--tokens", "9000", "--trials", "1")
    assert prefixes.run(parser.parse_args(too_long)) == 2
    assert "context length" in capsys.readouterr().err
