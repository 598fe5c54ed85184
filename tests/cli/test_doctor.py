"""`omlx doctor`, its facts and warnings of a machine, `--hosts`; and `omlx dashboard`."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from omlx.cli.doctor import read_machine
from omlx.cli.main import main
from omlx.machine import Machine, machine_rows, power_rows, warnings
from omlx.models.catalog.discovery import BUNDLED
from omlx.power import Heat, Power
from tests.cli.inside import Capture, omlx
from tests.cli.serving import started
from tests.lanes import few
from tests.models.trees import hub_model, model
from tests.server.running import TARGET


def test_doctor_says_what_is_here_and_no_secrets(
    alone: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMLX_API_KEY", "a-secret")
    model(alone / ".lmstudio/models/org/whole")
    hub_model(alone / ".cache/huggingface/hub", "org/half", files=[], unfinished=1)
    assert main(["config", "set", "port", "0"]) == 0
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "mlx-lm",
        "limit for models",
        "1 found, 0 skipped",
        "1 model.half_download",
        "-rw-------",
        "free",
    ):
        assert words in shown, words
    assert "API key" in shown
    assert "a-secret" not in shown
    assert str(alone) not in shown
    assert "~/.omlx" in shown


def test_doctor_names_files_of_others_and_a_busy_port(alone: Path, capsys: Capture) -> None:
    (alone / ".omlx").mkdir()
    (alone / ".omlx/config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["doctor", "--port", str(taken.getsockname()[1])]) == 0
    shown = capsys.readouterr().out
    assert "is in use" in shown
    assert "written by another program" in shown


def test_no_server_no_dashboard(alone: Path, capsys: Capture) -> None:
    assert main(["dashboard"]) == 2
    assert "No server is running" in capsys.readouterr().err


def test_the_first_run_prints_a_link_and_dashboard_another_one(tmp_path: Path) -> None:
    with started(tmp_path, "--port", "0", "--no-hf-cache") as server:
        words = " ".join(server.announced).split()
        links = [word for word in words if "/admin/login?token=" in word]
        links.append(omlx(tmp_path, "dashboard", "--print").stdout.strip())
        assert [log_in(link) for link in [*links, *links]] == [200, 200, 401, 401]
        server.process.terminate()
        server.process.communicate()
    log = (tmp_path / ".omlx/logs/omlx.log").read_text(encoding="utf-8") + server.errors
    assert not any(parse_qs(urlsplit(link).query)["token"][0] in log for link in links)
    assert not (tmp_path / ".omlx/server.json").exists()


def log_in(link: str) -> int:
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.request(
        "POST", "/admin/api/login", json.dumps({"token": parse_qs(parts.query)["token"][0]})
    )
    status = connection.getresponse().status
    connection.close()
    return status


MAC = Machine(
    system="Darwin 25.1.0 arm64",
    processors=14,
    device="gpu",
    device_name="Apple M4 Pro",
    architecture="applegpu_g16s",
    metal=True,
    mlx="0.32.4",
    macos="26.1",
    power=Power(mains=True, low_power=False, heat=Heat()),
)


def codes(machine: Machine) -> list[str]:
    for warning in warnings(machine):
        assert warning.message != warning.code, "it has no sentence"
    return [warning.code for warning in warnings(machine)]


def test_a_mac_as_it_should_be_has_no_warnings() -> None:
    assert codes(MAC) == []


@pytest.mark.parametrize(
    ("macos", "mlx", "warned"),
    [
        ("27.0", "0.32.1", True),
        ("27.0", "0.31.9", True),
        ("28.1.2", "0.30", True),
        ("27.0", "0.32.2", False),
        ("27.0", "0.32.4.dev20260801+abc", False),
        ("27.0", "1.0", False),
        ("26.4", "0.32.1", False),
    ],
)
def test_a_macos_that_unwires_weights_of_an_old_mlx(macos: str, mlx: str, warned: bool) -> None:
    found = codes(replace(MAC, macos=macos, mlx=mlx))
    assert found == (["doctor.unwired"] if warned else [])


def test_low_power_mode_and_heat() -> None:
    slow = Power(mains=False, low_power=True, heat=Heat(level=1, speed_percent=70))
    assert codes(replace(MAC, power=slow)) == ["doctor.low_power", "doctor.hot"]
    (_, hot) = warnings(replace(MAC, power=slow))
    assert "warning level 1, processor at 70 %" in hot.message


def test_without_a_gpu_it_says_what_that_means_for_a_mac_and_for_others() -> None:
    assert codes(replace(MAC, device="cpu", metal=False)) == ["doctor.no_metal"]
    assert codes(replace(MAC, device="cpu", metal=False, macos="")) == ["doctor.no_gpu"]


def test_rows_of_a_mac() -> None:
    rows = dict(machine_rows(replace(MAC, variables={"MLX_METAL_GPU_ARCH": "applegpu_g16s"})))
    assert rows["device"] == "gpu: Apple M4 Pro"
    assert rows["architecture"] == rows["MLX_METAL_GPU_ARCH"] == "applegpu_g16s"
    assert (rows["macOS"], rows["Metal"]) == ("26.1", "yes")
    assert dict(power_rows(MAC.power)) == {
        "source": "mains",
        "Low Power Mode": "off",
        "heat": "none recorded",
    }


def test_what_is_not_known_is_not_guessed() -> None:
    assert set(dict(power_rows(Power(None))).values()) == {"not known"}


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "20")
    machine = read_machine()
    assert machine.device in ("cpu", "gpu")
    assert machine.variables["MLX_MAX_OPS_PER_BUFFER"] == "20"
    assert machine.metal == (machine.macos != "" and machine.device == "gpu")


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


@pytest.mark.slow
def test_a_follower_of_this_machine_searches_where_the_leader_does(
    alone: Path, capsys: Capture
) -> None:
    shutil.copytree(BUNDLED / TARGET, alone / "elsewhere/org/mine")
    flags = ["--no-bundled", "--model-dir", str(alone / "elsewhere")]
    assert main(["doctor", "org/mine", "--hosts", LOCAL, *flags]) == 0
    *_, line = capsys.readouterr().out.splitlines()
    assert line.split()[2] == "="


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_model_without_hosts_is_not_ignored(alone: Path, capsys: Capture) -> None:
    assert main(["doctor", TARGET]) == 2
    assert f"omlx doctor --exact {TARGET}" in capsys.readouterr().err
