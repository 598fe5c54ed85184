"""`omlx serve` at its start and its end: the network, the browser, a fitting example request."""

from __future__ import annotations

import json
import shlex
import shutil
import ssl
import subprocess
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from omlx.cli.main import main
from omlx.cli.serve.address import EVERYWHERE, ensure_key, open_to_network
from omlx.cli.serve.announcement import example
from omlx.cli.serve.ending import Deadline, EngineMonitor
from omlx.clients.agents import machine_names, network_urls
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.speculation import check_value
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Settings
from omlx.settings.store import Store
from tests.cli.inside import Capture, omlx
from tests.cli.serving import serving
from tests.cli.terminal import CTRL_C, terminal
from tests.lanes import few
from tests.processes import environment
from tests.server.encoders.tiny import declare, write
from tests.server.running import TARGET


def test_the_network_needs_addresses_names_and_one_key(tmp_path: Path) -> None:
    arguments = Namespace(host=None, allow_host=None)
    open_to_network(arguments, Settings(allow_host=("mine.example",)))
    assert (arguments.host, arguments.allow_host[0]) == (EVERYWHERE, "mine.example")
    assert arguments.allow_host[1:] == machine_names()
    arguments = Namespace(host="192.168.1.2", allow_host=None)
    open_to_network(arguments, Settings())
    assert arguments.host == "192.168.1.2"

    live = LiveConfiguration((), Store(tmp_path, check_value))
    keys = []
    for _ in range(2):
        ensure_key(live)
        keys.append(live.current.resolve().settings.api_key)
    assert keys[0] is not None
    assert keys[0] == keys[1]
    assert network_urls("https://x:8000")[-1] == f"https://{machine_names()[0]}:8000"


@pytest.mark.parametrize("opens", few([True, False], True))
def test_a_desktop_opens_the_dashboard_and_a_terminal_shows_the_key(
    tmp_path: Path, opens: bool
) -> None:
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "OPENED $1"\n')
    browser.chmod(0o755)
    environ = environment(tmp_path, BROWSER=f"{browser} %s", DISPLAY=":0")
    environ.pop("SSH_CONNECTION", None)
    flags = [] if opens else ["--no-open"]
    with terminal(environ, "serve", "--lan", "--port", "0", "--no-hf-cache", *flags) as screen:
        screen.wait_for("Which one to download?")
        screen.type("0\n")
        screen.wait_for("In the local network: http://")
        screen.wait_for("API key: ")
        screen.wait_for("curl")
        if opens:
            screen.wait_for("OPENED http://127.0.0.1:")
            screen.wait_for("/admin/login?token=")
        screen.type(CTRL_C)
        assert screen.end() == 0
    assert ("OPENED" in screen.text) is opens
    # What the question has offered is not offered again.
    assert screen.text.count("mlx-community/Qwen3-8B-4bit ") <= 1


@pytest.mark.parametrize(("count", "said"), [(2, "Waiting for open requests: 2"), (0, "")])
def test_the_end_says_what_it_waits_for(
    capsys: pytest.CaptureFixture[str], count: int, said: str
) -> None:
    engine, watchdog = SimpleNamespace(open_count=count), SimpleNamespace(ending=False)
    with Deadline() as deadline:
        EngineMonitor(cast(Any, engine), cast(Any, watchdog), deadline).drain()
    assert watchdog.ending
    error = capsys.readouterr().err
    assert said in error
    assert bool(error) is bool(count)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ed25519 -nodes -days 2 -subj /CN=localhost".split()
    names = ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return files


def test_https_is_served_and_other_commands_find_it(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    shutil.copytree(BUNDLED / TARGET, tmp_path / ".omlx/models/m")
    cert, key = map(str, certificate)
    with serving(tmp_path, "--tls-cert", cert, "--tls-key", key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=cert)
        context.check_hostname = False
        models = httpx.get(f"{server.url}/v1/models", verify=context).json()["data"]
        assert [model["id"] for model in models] == ["m"]
        listed = omlx(tmp_path, "ps")
        assert (listed.returncode, server.url in listed.stdout) == (0, True), listed.stderr


@pytest.mark.parametrize("flag", ["--tls-cert", "--tls-key"])
def test_a_certificate_that_cannot_be_used_is_named(
    alone: Path, capsys: Capture, certificate: tuple[Path, Path], flag: str
) -> None:
    (alone / "no.pem").write_text("none")
    path = str(alone / "no.pem") if flag == "--tls-cert" else str(certificate[1])
    assert main(["serve", "--port", "0", flag, path]) == 2
    error = capsys.readouterr().err
    assert ("no.pem" if flag == "--tls-cert" else "tls_cert") in error


ADDRESS = "http://127.0.0.1:8000"
CHAT = ModelEntry(TARGET, BUNDLED / TARGET, "bundled")


def asked(*models: ModelEntry) -> tuple[str, dict[str, Any]]:
    """Return path and body of the example."""
    _, line = example(models, ADDRESS, with_key=False)
    words = shlex.split(line)
    (url,) = (word for word in words if word.startswith(ADDRESS))
    return url.removeprefix(ADDRESS), json.loads(words[-1])


def test_a_chat_is_shown_before_an_embedding(tmp_path: Path) -> None:
    encoder = declare(write(tmp_path / "e", "bert"), {"pooling_mode": "mean"}, normalize=True)
    path, body = asked(encoder, CHAT)
    assert (path, body["model"]) == ("/v1/chat/completions", TARGET)
    assert body["temperature"] == 0, "everyone sees the likeliest answer"


def test_an_encoder_alone_is_asked_for_a_vector_or_a_score(tmp_path: Path) -> None:
    encoder = declare(write(tmp_path / "e", "bert"), {"pooling_mode": "mean"}, normalize=True)
    judge = write(tmp_path / "j", "bert", labels=1)
    path, body = asked(encoder)
    assert (path, body.keys()) == ("/v1/embeddings", {"model", "input"})
    path, body = asked(judge)
    assert (path, body.keys()) == ("/v1/rerank", {"model", "query", "documents"})


def test_a_model_that_does_nothing_alone_has_no_example(tmp_path: Path) -> None:
    assert example([write(tmp_path / "e", "bert")], ADDRESS, with_key=False) == []
    assert example([], ADDRESS, with_key=False) == []


@pytest.mark.slow
@pytest.mark.needs_extra
def test_the_server_of_an_encoder_prints_a_request_that_works(tmp_path: Path) -> None:
    folder = tmp_path / "models/org/e"
    declare(write(folder, "bert"), {"pooling_mode": "mean"}, normalize=True)
    with serving(tmp_path, "--model-dir", str(tmp_path / "models")) as server:
        command = ["sh", "-c", server.announced[-1]]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(answer)["data"][0]["embedding"]
