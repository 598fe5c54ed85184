"""`omlx doctor --hosts`: real followers on loopback, as they are and with one thing wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from omlx.cli.main import main
from omlx.models.catalog.discovery import BUNDLED
from tests.cli.test_main import Capture, alone
from tests.lanes import few
from tests.server.running import TARGET

__all__ = ["alone"]

LOCAL = "127.0.0.1,127.0.0.1"
HOST = {"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}


def hostfile(folder: Path, *envs: str) -> str:
    """Two hosts on loopback; the followers get `envs`."""
    path = folder / "hosts.json"
    path.write_text(json.dumps({"envs": envs, "hosts": [HOST, HOST]}))
    return str(path)


def test_hosts_that_can_serve_a_model(alone: Path, capsys: Capture) -> None:
    assert main(["doctor", TARGET, "--hosts", LOCAL]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    host, address, same, trip, unit, rate, rate_unit, *_ = line.split()
    assert (host, address, same) == ("127.0.0.1", "127.0.0.1", "=")
    assert (unit, rate_unit) == ("µs", "MB/s")
    assert float(trip) > 0
    assert float(rate) > 0


@pytest.mark.slow
def test_without_a_model_only_links_are_measured(alone: Path, capsys: Capture) -> None:
    assert main(["doctor", "--hosts", LOCAL]) == 0
    assert "µs" in capsys.readouterr().out


def test_a_follower_of_this_machine_searches_where_the_leader_does(
    alone: Path, capsys: Capture
) -> None:
    shutil.copytree(BUNDLED / TARGET, alone / "elsewhere/org/mine")
    flags = ["--no-bundled", "--model-dir", str(alone / "elsewhere")]
    assert main(["doctor", "org/mine", "--hosts", LOCAL, *flags]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split()[2] == "="


def test_another_copy_of_the_model_is_named(alone: Path, capsys: Capture) -> None:
    copy = alone / "other" / TARGET
    shutil.copytree(BUNDLED / TARGET, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "rope_theta": 12345.0}))
    hosts = hostfile(alone, f"OMLX_MODEL_DIR={alone / 'other'}")
    assert main(["doctor", TARGET, "--hosts", hosts]) == 1
    shown = capsys.readouterr().out
    assert "≠" in shown
    assert "config.json" in shown


@pytest.mark.parametrize(
    ("env", "part"),
    few(
        [("OMLX_BUNDLED=off", "omlx pull"), ("OMLX_LOG_LEVEL=nonsense", "did not start")],
        ("OMLX_BUNDLED=off", "omlx pull"),
    ),
)
def test_a_host_that_cannot_take_part(env: str, part: str, alone: Path, capsys: Capture) -> None:
    assert main(["doctor", TARGET, "--hosts", hostfile(alone, env)]) == 1
    assert part in capsys.readouterr().out


def test_a_model_that_is_not_here(alone: Path, capsys: Capture) -> None:
    assert main(["doctor", "org/none", "--hosts", LOCAL]) == 2
    assert "org/none" in capsys.readouterr().err
