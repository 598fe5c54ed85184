"""`omlx keys`, inside this process."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from omlx.cli.main import main
from tests.cli.test_config import said
from tests.cli.test_main import Capture, alone

__all__ = ["alone"]


def test_add_list_revoke(alone: Path, capsys: Capture) -> None:
    file = alone / ".omlx/keys.json"
    assert said(capsys, "keys", "list") == ""
    assert main(["keys", "add", "laptop", "--models", "target", "org/*", "--rate", "60"]) == 0
    out, messages = capsys.readouterr()
    key = out.strip()
    assert key.startswith("sk-omlx-")
    assert len(key) == 51
    assert "'org/*'" in messages
    assert "'target'" not in messages
    assert "requires a key of every program" in messages
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in file.read_text()
    assert main(["keys", "add", "phone"]) == 0
    assert "requires a key" not in capsys.readouterr().err
    lines = said(capsys, "keys", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "laptop", "phone"]
    assert f"…{key[-4:]}" in lines[1]
    records = json.loads(said(capsys, "keys", "list", "--json"))
    assert [(row["name"], row["models"], row["requests_per_minute"]) for row in records] == [
        ("laptop", ["target", "org/*"], 60),
        ("phone", ["*"], None),
    ]
    assert "sha256" not in records[0]
    said(capsys, "keys", "revoke", "laptop")
    assert [row["name"] for row in json.loads(said(capsys, "keys", "list", "--json"))] == ["phone"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "phone"], "already an API key named 'phone'"),
        (["add", "api_key"], "'api_key' is not a valid name"),
        (["add", "a/b"], "'a/b' is not a valid name"),
        (["add", "x" * 65], "is not a valid name"),
        (["add", " "], "is not a valid name"),
        (["add", "x", "--rate", "0"], "from 1 to 100000"),
        (["add", "x", "--models", ""], "without spaces"),
        (["add", "x", "--models", "a b"], "without spaces"),
        (["revoke", "laptop"], "no API key named 'laptop'"),
    ],
)
def test_what_cannot_be_done_is_refused(
    alone: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    said(capsys, "keys", "add", "phone")
    assert message in said(capsys, "keys", *arguments, status=2)
    assert len(json.loads(said(capsys, "keys", "list", "--json"))) == 1


def test_a_damaged_file_stops_a_start_and_is_left_alone(alone: Path, capsys: Capture) -> None:
    file = alone / ".omlx/keys.json"
    said(capsys, "keys", "add", "phone")
    damaged = file.read_text().replace('"created"', '"made"')
    file.write_text(damaged)
    for command in (["keys", "list"], ["keys", "add", "x"], ["keys", "revoke", "phone"], ["serve"]):
        assert "not a valid file of API keys (keys.0." in said(capsys, *command, status=2)
    assert "not a valid file of API keys" in said(capsys, "doctor")
    assert file.read_text() == damaged
