"""The bench of prefixes: what it counts, and that it runs against both servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omlx.bench.prefix.command import write_model
from omlx.bench.prefix.servers import Answer, Message, Server
from omlx.bench.prefix.talk import FirstToken, Talk, converse
from omlx.cli.main import main
from omlx.models.catalog.discovery import BUNDLED

TARGET = BUNDLED / "omlx-demo/target"


def test_ratios_are_medians_within_trials_and_sums_of_tokens() -> None:
    assert FirstToken((1.0, 2.0, 4.0), (0.1, 0.1, 0.1)).ratio == pytest.approx(0.05)
    assert Talk((10, 20), (10, 6), (10, 5)).ratio == pytest.approx(16 / 15)


class Parrot(Server):
    """Says the same to everything and computes all of every prompt."""

    def ask(self, messages: list[Message], max_tokens: int) -> Answer:
        return Answer("yes", 0.1, 100, 100)


def test_new_is_what_no_earlier_turn_began_with(tmp_path: Path) -> None:
    _, tokenizer = write_model(TARGET, tmp_path / "m", 0)
    talk = converse(Parrot("parrot", 0, "m"), tokenizer, 4, 8)
    assert talk.computed == (100,) * 4
    assert talk.new[0] > 400
    assert all(0 < new < talk.new[0] for new in talk.new[1:])


@pytest.mark.slow
def test_both_servers_are_measured(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = [
        "--prefix",
        "200",
        "--trials",
        "1",
        "--turns",
        "3",
        "--tokens",
        "4",
        "--json",
        str(report),
    ]
    assert main(["bench", "prefix", "--model", str(TARGET), *options]) == 0
    told = json.loads(report.read_text(encoding="utf-8"))
    assert set(told["first_token"]) == set(told["conversation"]) == {"omlx", "mlx-lm"}
    assert told["conversation"]["omlx"]["ratio"] < 1.3
