"""The command line as a user meets it: real processes and sockets, lists of models, completion."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from omlx import __version__
from omlx.cli.main import COMMANDS, main
from omlx.cli.serve.address import listen, url
from omlx.errors import ConfigError
from omlx.models.catalog.discovery import BUNDLED
from omlx.server.http.guard import is_loopback
from tests.cli.inside import Capture, omlx
from tests.cli.serving import serving, started
from tests.lanes import few
from tests.models import trees
from tests.models.trees import hub_model, model
from tests.processes import environment, into_closed_pipe
from tests.server.running import PATIENCE_S


def test_version(tmp_path: Path) -> None:
    assert omlx(tmp_path, "--version").stdout.startswith(f"omlx {__version__} (mlx ")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    few(
        [(["models", "--json"], "1"), (["serve", "--port", "0"], ""), (["--version"], "")],
        (["models", "--json"], "1"),
    ),
)
def test_who_writes_into_a_closed_pipe_ends_quietly(
    tmp_path: Path, arguments: list[str], unbuffered: str
) -> None:
    ended = into_closed_pipe(tmp_path, "omlx", *arguments, unbuffered=unbuffered)
    assert ended == (141, "")


def test_models_lists_all_with_reasons(tmp_path: Path) -> None:
    model(tmp_path / ".lmstudio/models/org/whole")
    hub_model(tmp_path / ".cache/huggingface/hub", "org/whole")
    hub_model(tmp_path / ".cache/huggingface/hub", "org/half", files=[], unfinished=1)
    text = omlx(tmp_path, "models").stdout
    assert "org/half" in text
    assert "download is incomplete" in text
    records = json.loads(omlx(tmp_path, "models", "--json", "--no-bundled").stdout)
    assert {(record["id"], record["source"], record["status"]) for record in records} == {
        ("org/whole", "lmstudio", "usable"),
        ("org/whole", "hf-cache", "shadowed"),
        ("org/half", "hf-cache", "skipped"),
    }
    assert (
        next(record for record in records if record["id"] == "org/half")["reason"]["code"]
        == "model.half_download"
    )


def test_no_models_at_all(tmp_path: Path) -> None:
    assert "No models found" in omlx(tmp_path, "models", "--no-bundled").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no/such-model"], "Model 'no/such-model' not found"),
        (
            ["--num-draft-tokens", "-1"],
            "--num-draft-tokens: '-1' is not allowed. Enter a whole number from 1 to 64",
        ),
        (
            ["--draft-min", "-2"],
            "--draft-min: '-2' is not allowed. Enter a whole number from 1 to 64",
        ),
        (["--speculation", "ngram;drft"], "--speculation: Column 7: 'drft' is not a drafter"),
        (["--host", "0.0.0.0"], "an API key is required"),
        (["--host", "::"], "an API key is required"),
        (
            ["--port", "70000"],
            "--port: '70000' is not allowed. Enter a whole number from 0 to 65535",
        ),
        (["--host", "256.0.0.1", "--api-key", "k"], "Cannot listen on 256.0.0.1"),
        (["--dtype", "int4"], "--dtype: 'int4' is not a valid choice. Use one of auto"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    alone: Path, arguments: list[str], said: str, capfd: Capture
) -> None:
    assert main(["serve", *arguments]) == 2
    shown = capfd.readouterr()
    assert said in shown.err
    assert len(shown.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("bench exact --model DIR", "python -m lab.bench exact"),
        ("bench spec", "python -m lab.bench speculation"),
        ("doctor --bench MODEL", "python -m lab.bench machine"),
        ("verify --server=http://127.0.0.1:1", "python -m lab.conformance"),
    ],
)
def test_a_command_that_moved_names_the_new_one(
    line: str, new: str, alone: Path, capfd: Capture
) -> None:
    assert main(line.split()) == 2
    shown = capfd.readouterr().err
    assert f"is now {new}, in a clone" in shown
    assert len(shown.splitlines()) == 1


def test_a_wrong_variable_is_named(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    monkeypatch.setenv("OMLX_PORT", "http")
    assert main(["serve"]) == 2
    assert "OMLX_PORT: 'http'" in capfd.readouterr().err


def test_a_start_moves_a_broken_file_away_and_no_command_that_only_reads_does(
    alone: Path, capfd: Capture
) -> None:
    (alone / ".omlx").mkdir()
    file = alone / ".omlx/models.json"
    file.write_text('{"format": "omlx-config/1", "models": {')
    for command in (["models"], ["config", "list"], ["doctor"]):
        assert main(command) == 0
        assert "cannot be parsed" in capfd.readouterr().err
    assert [path.name for path in (alone / ".omlx").iterdir()] == ["models.json"]
    assert main(["serve", "no/such-model"]) == 2
    (kept,) = (alone / ".omlx").iterdir()
    assert kept.name.startswith("models.json.corrupt-")
    assert str(kept) in capfd.readouterr().err


def test_a_truncated_model_is_named_and_nothing_is_served(alone: Path, capfd: Capture) -> None:
    broken = alone / "models/broken"
    shutil.copytree(BUNDLED / "omlx-demo/draft", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert main(["serve", "broken", "--model-dir", str(alone / "models"), "--port", "0"]) == 2
    shown = capfd.readouterr()
    assert "broken: model.safetensors is truncated" in shown.err
    assert shown.out == ""


def test_a_busy_port_is_named_with_one_that_is_free(alone: Path, capfd: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    error = capfd.readouterr().err
    assert f"Port {port} is in use" in error
    listen("127.0.0.1", int(error.rpartition("--port ")[2])).close()


def test_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9")] == [
        True
    ] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "mac.local", "192.168.1.2")] == [
        False
    ] * 4


def test_the_address_that_is_shown_can_be_reached() -> None:
    with listen("0.0.0.0", 0) as everywhere:
        assert url(everywhere) == f"http://127.0.0.1:{everywhere.getsockname()[1]}"
    with pytest.raises(ConfigError, match=r"no\.such\.host"):
        listen("no.such.host.invalid", 0)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT]
)
def test_serve_announces_answers_and_stops(tmp_path: Path, number: int) -> None:
    """The demo models on a free port, by a short name and a path, with a key."""
    key = {"OMLX_API_KEY": "a-secret"}
    words = (str(BUNDLED / "omlx-demo/target"), "--draft-model", "draft", "--port", "0")
    with started(tmp_path, *words, **key) as server:
        lines = server.announced
        assert lines[1:3] == ["Model: target", "Draft model: omlx-demo/draft"]
        answer = subprocess.run(
            ["/bin/sh", "-c", lines[-1]],
            env=environment(tmp_path, **key),
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.stdout.rstrip().endswith("data: [DONE]"), answer.stderr
        server.process.send_signal(number)
        output, _ = server.process.communicate()
    assert server.process.returncode == 0
    assert "a-secret" not in "\n".join(lines) + output + server.errors
    assert "Traceback" not in server.errors
    log = (tmp_path / ".omlx/logs/omlx.log").read_text(encoding="utf-8")
    assert any(json.loads(line).get("event") == "request" for line in log.splitlines())


BASH = """
source script
COMP_WORDS=(omlx {words}) COMP_CWORD={index} COMP_LINE="omlx {words}" COMP_POINT=99
$(complete -p omlx | sed 's/.*-F \\([^ ]*\\).*/\\1/') omlx "{last}" ""
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "source script; complete -C 'omlx {words}'"


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        done = omlx(folder, "completion", shell)
        assert done.returncode == 0, done.stderr
        (folder / shell).write_text(done.stdout)
    program = folder / "bin/omlx"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m omlx "$@"\n')
    program.chmod(0o755)
    return folder


def completed(scripts: Path, shell: str, words: str) -> list[str]:
    """Return what a shell offers after `omlx words`; the last word is completed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = scripts / shell
    parts = words.split(" ")
    text = BASH.format(words=words, index=len(parts), last=parts[-1])
    if shell == "fish":
        text = FISH.format(words=words)
    path = f"{scripts / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", text.replace("script", str(script), 1)],
        env=environment(scripts, PATH=path),
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split("\t")[0].strip() for line in done.stdout.splitlines()]


def test_every_command_is_in_every_script(scripts: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        text = (scripts / shell).read_text()
        assert [name for name in COMMANDS if name not in text] == []
        assert "--memory-limit" in text
    # In its function alone: zsh would run it once for each argument when it reads the script.
    assert (scripts / "zsh").read_text().count("$(omlx") == 1


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_flags_and_models(scripts: Path, shell: str) -> None:
    assert {"serve", "service"} <= set(completed(scripts, shell, "ser"))
    assert "--memory-limit" in completed(scripts, shell, "serve --mem")
    assert "omlx-demo/target" in completed(scripts, shell, "run omlx-demo/")


def test_zsh_takes_the_script(scripts: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    check = f'autoload -U compinit; compinit -D; eval "$(<{scripts}/zsh)"; print $_comps[omlx]'
    done = subprocess.run(
        ["zsh", "-f", "-c", check],
        env=environment(scripts),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip()
    assert done.stderr == ""


def listing(home: Path, *arguments: str) -> str:
    return omlx(home, "models", "--no-bundled", *arguments).stdout


def test_names_and_reasons_cannot_steer_a_terminal(tmp_path: Path) -> None:
    models = tmp_path / ".omlx/models"
    trees.model(models / "\x1b[31mred")
    trees.model(models / "two\nlines")
    trees.model(models / "type", {"model_type": "\x1b]0;title\x07\u202e"})
    text = listing(tmp_path)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert len(text.strip().splitlines()) == 4, "a heading and a line each"
    assert "\\x1b[31mred" in text
    ids = {record["id"] for record in json.loads(listing(tmp_path, "--json"))}
    assert ids == {"\x1b[31mred", "two\nlines", "type"}


def test_drafters_are_listed_apart_with_what_they_need(tmp_path: Path) -> None:
    models = tmp_path / ".omlx/models"
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 64, "vocab_size": 96}
    trees.model(models / "eagle", {"model_type": "llama", **config})
    trees.model(models / "broken", {"model_type": "llama"}, [])
    drafters, others = (part.splitlines() for part in listing(tmp_path).strip().split("\n\n"))
    assert [line.split()[0] for line in (*drafters[1:], *others[1:])] == ["eagle", "broken"]
    assert {"EAGLE-3", "64", "96"} <= set(re.findall(r"[\w-]+", drafters[1]))
    records = {record["id"]: record for record in json.loads(listing(tmp_path, "--json"))}
    assert [records[name]["drafter"] for name in ("eagle", "broken")] == ["eagle", None]


def test_a_running_server_sees_models_come_and_go(tmp_path: Path) -> None:
    models = tmp_path / ".omlx/models"
    shutil.copytree(BUNDLED / "omlx-demo/draft", models / "first")
    with serving(tmp_path) as server, httpx.Client(base_url=server.url) as http:

        def listed() -> list[str]:
            return [model["id"] for model in http.get("/v1/models").json()["data"]]

        def wait_for(expected: list[str]) -> None:
            until = time.monotonic() + PATIENCE_S
            while (seen := listed()) != expected:
                assert time.monotonic() < until, seen
                time.sleep(0.05)  # the list is all that tells

        wait_for(["first"])
        shutil.copytree(BUNDLED / "omlx-demo/draft", models / "copied")
        wait_for(["copied", "first"])
        shutil.rmtree(models / "copied")
        wait_for(["first"])
        gone = http.get("/v1/models/copied")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
