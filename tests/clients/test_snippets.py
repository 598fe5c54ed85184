"""Snippets work where they are pasted, and never hold the key."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omlx.clients.agents import Endpoint
from omlx.clients.apps import APPS, Snippet
from tests.admin.running import Administered, administered
from tests.server.running import TARGET

PROMPT = 'It\'s "fine" — oui?'
HOSTILE_NAMES = (
    "org/two words",
    "org/a;touch pwned",
    "org/$(touch pwned)",
    "org/`touch pwned`",
    'org/it\'s "quoted" \\ $HOME',
    "org/first\nsecond",
    "org/\U0001f600 \x7f",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home"), api_key="secret-key") as running:
        yield running


def named(name: str, address: str, *, with_key: bool, model: str = TARGET) -> Snippet:
    app = next(app for app in APPS if app.name == name)
    return app.snippet(Endpoint(address, model, 4096, with_key), PROMPT)


def test_the_curl_line_streams_an_answer(server: Administered) -> None:
    line = named("curl", server.running.url, with_key=True).text
    environ = {**os.environ, "OMLX_API_KEY": "secret-key"}
    said = subprocess.run(
        ["sh", "-c", line], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.rstrip().endswith("data: [DONE]")
    assert json.loads(shlex.split(line)[-1])["messages"][0]["content"] == PROMPT


@pytest.mark.parametrize("name", ["OpenAI", "Anthropic", "Ollama"])
def test_the_python_lines_run(
    server: Administered, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    os.environ["OMLX_API_KEY"] = "secret-key"
    try:
        names: dict[str, Any] = {}
        exec(named(name, server.running.url, with_key=True).text, names)
        with names["client"]:
            pass  # closes its connections
    finally:
        del os.environ["OMLX_API_KEY"]
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("with_key", [True, False])
def test_the_others_parse(with_key: bool) -> None:
    address = "http://127.0.0.1:8000"
    codex = tomllib.loads(named("Codex", address, with_key=with_key).text)
    assert codex["model"] == TARGET
    assert codex["model_context_window"] == 4096
    provider = codex["model_providers"][codex["model_provider"]]
    assert provider["base_url"] == f"{address}/v1"
    assert provider.get("env_key") == ("OMLX_API_KEY" if with_key else None)
    opencode = json.loads(named("OpenCode", address, with_key=with_key).text)
    assert opencode["model"] == f"omlx/{TARGET}"
    limit = opencode["provider"]["omlx"]["models"][TARGET]["limit"]
    assert limit == {"context": 4096, "output": 1024}
    qwen = json.loads(named("Qwen Code", address, with_key=with_key).text)
    (model,) = qwen["modelProviders"]["openai"]
    assert (qwen["model"]["name"], model["id"], model["baseUrl"]) == (
        TARGET,
        TARGET,
        f"{address}/v1",
    )
    assert model["generationConfig"] == {"contextWindowSize": 4096}
    assert qwen.get("env", {}).get(model["envKey"]) == (None if with_key else "none")
    script = named("Claude Code", address, with_key=with_key).text.replace("claude", "env")
    environ = {"PATH": os.environ["PATH"], "OMLX_API_KEY": "k"}
    said = subprocess.run(
        ["sh", "-c", script], env=environ, capture_output=True, text=True, check=True
    ).stdout
    variables = dict(line.partition("=")[::2] for line in said.splitlines())
    assert variables["ANTHROPIC_BASE_URL"] == address
    assert variables["ANTHROPIC_AUTH_TOKEN"] == ("k" if with_key else "none")
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "17096"  # 13,000 of it are not used
    assert variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "17096"
    assert variables["ANTHROPIC_MODEL"] == variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == TARGET


@pytest.mark.parametrize("model", HOSTILE_NAMES)
def test_any_model_name_survives_a_shell_and_runs_nothing(model: str, tmp_path: Path) -> None:
    def run(script: str) -> str:
        done = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    address = "http://127.0.0.1:8000"
    exports = named("Claude Code", address, with_key=False, model=model).text
    variables = ("MODEL", "DEFAULT_OPUS_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_HAIKU_MODEL")
    for name in variables:
        printed = exports.replace("\nclaude", f'\nprintf %s "$ANTHROPIC_{name}"')
        assert run(printed) == model
    script = named("aider", address, with_key=False, model=model).text
    arguments = run('aider() { printf "%s\\0" "$@"; }\n' + script).split("\0")
    assert f"openai/{model}" in arguments
    launch = next(app for app in APPS if app.program == "codex").launch(Endpoint(address, model))
    assert launch is not None
    assert shlex.split(launch) == ["omlx", "launch", "--model", model, "codex"]
    command = named("curl", address, with_key=False, model=model).text
    arguments = run('curl() { printf "%s\\0" "$@"; }\n' + command).split("\0")
    body = json.loads(arguments[arguments.index("-d") + 1])
    assert (body["model"], body["messages"][0]["content"]) == (model, PROMPT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", HOSTILE_NAMES)
def test_any_model_name_survives_the_configurations(model: str) -> None:
    address = "http://127.0.0.1:8000"
    codex = tomllib.loads(named("Codex", address, with_key=False, model=model).text)
    assert codex["model"] == model
    qwen = json.loads(named("Qwen Code", address, with_key=False, model=model).text)
    assert qwen["model"]["name"] == model
    tree = ast.parse(named("OpenAI", address, with_key=False, model=model).text)
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert model in literals


def test_the_page_fills_in_the_address_of_the_browser_and_never_the_key(
    server: Administered,
) -> None:
    with server.browser() as client:
        text = client.get("/admin/connect").text
        assert f"{server.running.url}/v1/chat/completions" in text
        assert "$OMLX_API_KEY" in text
        assert "secret-key" not in text
