"""`omlx bench prefixes`: first tokens of prompts that are new, in memory, and on disk."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import httpx
import pytest

from omlx.bench import prefixes
from omlx.bench.http.server import Server
from omlx.bench.prefixes import FirstTokens, continued, conversation, first_token
from omlx.models.catalog.discovery import BUNDLED
from tests.server.running import TARGET, omlx


def test_shares_are_medians_within_trials() -> None:
    times = FirstTokens(4000, cold=[1.0, 2.0, 4.0], memory=[0.1, 0.1, 0.1], disk=[0.1, 0.4, 0.4])
    record = times.to_json()
    assert (record["memory_of_cold"], record["disk_of_cold"]) == (0.05, 0.1)
    assert times.cells[:2] == ("4000", "2.000 s")
    assert "5.0% (2.5% to 10.0%)" in times.cells


def test_a_prefix_that_is_or_is_not_cached_against_expectation_ends_it() -> None:
    with omlx() as running:
        server = Server("omlx", httpx.URL(running.url).port or 0, TARGET, os.getpid())
        asked = conversation(server, 1, 900)
        assert 800 < len(server.tokens(asked)) < 1000
        with pytest.raises(RuntimeError, match="0% were cached"):
            first_token(server, asked)
        assert first_token(server, continued(asked, "And then?")) > 0
        with pytest.raises(RuntimeError, match=r"9\d% were cached"):
            first_token(server, continued(asked, "And now?"), cached=False)
        assert first_token(server, conversation(server, 2, 900), cached=False) > 0


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
    assert all(len(prompt["disk_s"]) == 1 for prompt in prompts)
    assert "load of the machine" in capsys.readouterr().out
    too_long = ("--model", model, "--tokens", "9000", "--trials", "1")
    assert prefixes.run(parser.parse_args(too_long)) == 2
    assert "context length" in capsys.readouterr().err
