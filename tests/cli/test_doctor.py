"""`omlx doctor` and `omlx dashboard`: what they print, and what they never print."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from omlx.cli.main import main
from tests.cli.inside import omlx
from tests.cli.test_main import Capture, alone
from tests.models.trees import hub_model, model
from tests.processes import environment

__all__ = ["alone"]


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
    command = [sys.executable, "-m", "omlx", "serve", "--port", "0", "--no-hf-cache"]
    links = []
    with subprocess.Popen(
        command,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "/admin/login?token=" in line:
                    links.append(line.split()[-1])
                if "curl" in line:
                    break
            links.append(omlx(tmp_path, "dashboard", "--print").stdout.strip())
            assert [log_in(link) for link in [*links, *links]] == [200, 200, 401, 401]
        finally:
            process.terminate()
            _, errors = process.communicate()
    log = (tmp_path / ".omlx/logs/omlx.log").read_text(encoding="utf-8") + errors
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
