"""The benchmark of prefix caches: what it counts, and that it runs against both servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.bench.__main__ import main
from lab.bench.http.server import Message
from lab.bench.prefix import Answer, Conversation, FirstToken, converse, write_model
from lab.bench.series import Series
from omlx.models.catalog.discovery import BUNDLED

TARGET = BUNDLED / "omlx-demo/target"


def test_ratios_are_medians_within_trials_and_sums_of_tokens() -> None:
    cold, hit = Series((1.0, 2.0, 4.0)), Series((0.1, 0.1, 0.1))
    assert FirstToken(cold, hit).ratio == pytest.approx(0.05)
    assert Conversation((10, 20), (10, 6), (10, 5)).ratio == pytest.approx(16 / 15)


def parrot(messages: Sequence[Message]) -> Answer:
    """Give the same answer to everything and compute every prompt."""
    return Answer("yes", 0.1, 100, 100)


def test_new_tokens_follow_the_longest_earlier_prefix(tmp_path: Path) -> None:
    _, tokenizer = write_model(TARGET, tmp_path / "m", 0)
    talk = converse(parrot, tokenizer, 4)
    assert talk.computed == (100,) * 4
    assert talk.new[0] > 400
    assert all(0 < new < talk.new[0] for new in talk.new[1:])


@pytest.mark.slow
def test_both_servers_are_measured(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    size = ("--prefix", "200", "--trials", "1", "--turns", "3", "--tokens", "4")
    assert main(["prefix", "--model", str(TARGET), *size, "--json", str(report)]) == 0
    figures = json.loads(report.read_text(encoding="utf-8"))
    assert set(figures["first_token"]) == set(figures["conversation"]) == {"omlx", "mlx-lm"}
    assert figures["conversation"]["omlx"]["ratio"] < 1.3
