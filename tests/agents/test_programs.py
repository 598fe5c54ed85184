"""A tool loop of each agent that is installed: npm i -g @anthropic-ai/claude-code @openai/codex
opencode-ai @qwen-code/qwen-code @mariozechner/pi-coding-agent @continuedev/cli.

They get a home folder and an environment of their own, and connect to the loopback interface only.
Everything of the server is real but the weights: the model follows a script. Each program calls a
tool twice and reads the results, with templates that take every conversation and that are strict.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omlx.cli.serve.address import published
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from omlx.settings.schema import Settings
from tests.agents import mcp_server
from tests.agents.recordings import image_of, recorded
from tests.agents.scripted import REPORT, Step, scripted_pool
from tests.server.running import TARGET, Running, omlx
from tests.templates.fetched import write_tokenizer

PATIENCE_S = 150
CONTEXT = 131_072
"""Tokens: agents that know of a short one compact their first request."""

PROOF = "proof-of-work.txt"
COMMANDS = {
    "it rains": f"printf 'it %s\\n' rains > {PROOF}; cat {PROOF}",
    "it snows": f"printf 'it %s\\n' snows >> {PROOF}; cat {PROOF}",
}
"""By proof, a command whose result shows it and whose text does not."""
TASK = "Find out about the weather."
TEMPLATES = ("bundled", "Qwen3.5-4B", "Mistral-Small-3.2-24B-Instruct-2506", "openai-gpt-oss-120b")

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("template", TEMPLATES)]


@contextmanager
def serving(template: str, folder: Path, *steps: Step) -> Iterator[Running]:
    """A server whose model has a chat template and follows the steps."""
    path = Path(shutil.copytree(BUNDLED / TARGET, folder / "model"))
    if template != "bundled":
        write_tokenizer(template, path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    registry = Registry((ModelEntry(TARGET, path, "model_dir"),))
    settings = Settings(model_map=("*=" + TARGET,))
    with omlx(settings, registry=registry, build=scripted_pool(*steps)) as running:
        yield running


def steps(tool: str, command: str, **others: str) -> list[Step]:
    """Calls of a tool that runs a command; `command` is the name of its argument."""
    return [Step(tool, {command: text, **others}, proof) for proof, text in COMMANDS.items()]


def run(command: list[str], home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    if (program := shutil.which(command[0])) is None:
        pytest.skip(f"needs {command[0]}")
    (home / "work").mkdir()
    given = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", **environment}
    return subprocess.run(
        [program, *command[1:]],
        cwd=home / "work",
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def finished(ran: subprocess.CompletedProcess[str], home: Path) -> None:
    """Check that both commands were run and the results read."""
    proof = home / "work" / PROOF
    assert proof.exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    assert proof.read_text() == "it rains\nit snows\n"
    assert REPORT in ran.stdout
    assert ran.returncode == 0, ran.stderr


def claude_code(
    server: Running, home: Path, tool: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return run(
        ["claude", "-p", TASK, "--allowedTools", tool, *options],
        home,
        **environment,
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
        DISABLE_TELEMETRY="1",
    )


def codex(server: Running, home: Path, **further: str) -> subprocess.CompletedProcess[str]:
    """As installed: with its web search, which is left out. `further` are options."""
    provider = f'{{name="omlx", base_url="{server.url}/v1", wire_api="responses"}}'
    options = {
        "model_provider": "omlx",
        "model": TARGET,
        "model_providers.omlx": provider,
        **further,
    }
    given = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    return run(
        [
            *("codex", "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", *given, TASK),
        ],
        home,
    )


def test_claude_code(template: str, tmp_path: Path) -> None:
    script = steps("Bash", "command", description="look")
    with serving(template, tmp_path, *script) as server:
        ran = claude_code(server, tmp_path, "Bash")
    finished(ran, tmp_path)


def test_codex(template: str, tmp_path: Path) -> None:
    with serving(template, tmp_path, *steps("exec_command", "cmd")) as server:
        ran = codex(server, tmp_path)
    finished(ran, tmp_path)


def test_claude_code_searches_a_tool(template: str, tmp_path: Path) -> None:
    """The tools of an MCP server come during the conversation, as references in a result."""
    script = [
        Step("ToolSearch", {"query": "select:mcp__weather__rain"}, "Loaded: mcp__weather__rain"),
        Step("mcp__weather__rain", {}, mcp_server.PROOF),
    ]
    server = {"command": sys.executable, "args": [mcp_server.__file__]}
    config = json.dumps({"mcpServers": {"weather": server}})
    with serving(template, tmp_path, *script) as running:
        tools = "ToolSearch,mcp__weather__rain"
        options = ("--mcp-config", config)
        ran = claude_code(running, tmp_path, tools, *options, ENABLE_TOOL_SEARCH="1")
    assert REPORT in ran.stdout, ran.stdout[-2000:] + ran.stderr[-2000:]


def test_codex_calls_a_tool_of_a_server(template: str, tmp_path: Path) -> None:
    script = [Step("mcp__weather.rain", {}, mcp_server.PROOF)]
    server = {
        "mcp_servers.weather.command": json.dumps(sys.executable),
        "mcp_servers.weather.args": json.dumps([mcp_server.__file__]),
    }
    with serving(template, tmp_path, *script) as running:
        ran = codex(running, tmp_path, **server)
    assert REPORT in ran.stdout, ran.stdout[-2000:] + ran.stderr[-2000:]


@pytest.mark.parametrize("provider", ["ollama", "lmstudio"])
def test_codex_finds_the_server_as_a_local_provider(
    template: str, tmp_path: Path, provider: str
) -> None:
    """It asks for version and models of the provider, pulls a model that it does not find, and
    then speaks OpenAI's API."""
    command = [
        *("codex", "exec", "--oss", "--local-provider", provider, "--model", TARGET),
        *("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
    ]
    with serving(template, tmp_path, *steps("exec_command", "cmd")) as server:
        ran = run(command, tmp_path, CODEX_OSS_BASE_URL=f"{server.url}/v1")
    finished(ran, tmp_path)


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_an_image_that_the_model_cannot_see(template: str, tmp_path: Path, agent: str) -> None:
    """The agent reads a file as an image; the model reads a note, and the session continues."""
    file = tmp_path / "shapes.png"
    file.write_bytes(image_of(recorded("codex")))
    tools = {"claude": ("Read", "file_path"), "codex": ("view_image", "path")}
    tool, argument = tools[agent]
    step = Step(tool, {argument: str(file)}, "only text can be read here")
    with serving(template, tmp_path, step) as server:
        ran = claude_code(server, tmp_path, tool) if agent == "claude" else codex(server, tmp_path)
    assert REPORT in ran.stdout, ran.stdout[-2000:] + ran.stderr[-2000:]


LAUNCHED = {
    "claude": (
        ("-p", TASK, "--allowedTools", "Bash"),
        steps("Bash", "command", description="look"),
    ),
    "codex": (
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
        steps("exec_command", "cmd"),
    ),
    "opencode": (("run", TASK), steps("bash", "command", description="look")),
    "qwen": (
        ("--yolo", "-p", TASK),
        steps("run_shell_command", "command", description="look", is_background="false"),
    ),
}
"""By agent, its own arguments and the calls of the model."""


@pytest.mark.parametrize("agent", LAUNCHED)
def test_launched_by_one_word(template: str, tmp_path: Path, agent: str) -> None:
    if shutil.which(agent) is None:
        pytest.skip(f"needs {agent}")
    arguments, script = LAUNCHED[agent]
    with serving(template, tmp_path, *script) as server, published(tmp_path, server.url):
        command = [sys.executable, "-m", "omlx", "launch", agent, *arguments]
        ran = run(command, tmp_path, OMLX_HOME=str(tmp_path))
    finished(ran, tmp_path)


def test_opencode(template: str, tmp_path: Path) -> None:
    with serving(template, tmp_path, *steps("bash", "command", description="look")) as server:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "omlx",
            "options": {"baseURL": f"{server.url}/v1", "apiKey": "none"},
            "models": {TARGET: {"name": "scripted"}},
        }
        settings = {
            "provider": {"omlx": provider},
            "model": f"omlx/{TARGET}",
            "autoupdate": False,
            "share": "disabled",
        }
        write(tmp_path / ".config/opencode/opencode.json", json.dumps(settings))
        ran = run(["opencode", "run", TASK], tmp_path, OPENCODE_DISABLE_MODELS_FETCH="1")
    finished(ran, tmp_path)


def test_qwen_code(template: str, tmp_path: Path) -> None:
    script = steps("run_shell_command", "command", description="look", is_background="false")
    with serving(template, tmp_path, *script) as server:
        ran = run(
            ["qwen", "--auth-type", "openai", "--yolo", "-p", TASK],
            tmp_path,
            OPENAI_API_KEY="none",
            OPENAI_BASE_URL=f"{server.url}/v1",
            OPENAI_MODEL=TARGET,
        )
    finished(ran, tmp_path)


def test_pi(template: str, tmp_path: Path) -> None:
    with serving(template, tmp_path, *steps("bash", "command")) as server:
        model = {
            "id": TARGET,
            "name": "scripted",
            "reasoning": False,
            "input": ["text"],
            "contextWindow": 100_000,
            "maxTokens": 1000,
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        }
        provider = {
            "baseUrl": f"{server.url}/v1",
            "apiKey": "none",
            "api": "openai-completions",
            "models": [model],
        }
        models = {"providers": {"omlx": provider}}
        write(tmp_path / ".pi/agent/models.json", json.dumps(models))
        command = ["pi", "-p", "--provider", "omlx", "--model", TARGET, TASK]
        ran = run(command, tmp_path, PI_OFFLINE="1")
    finished(ran, tmp_path)


def test_continue(template: str, tmp_path: Path) -> None:
    with serving(template, tmp_path, *steps("Bash", "command")) as server:
        model = {
            "name": "scripted",
            "provider": "openai",
            "model": TARGET,
            "apiKey": "none",
            "apiBase": f"{server.url}/v1",
            "roles": ["chat"],
            "capabilities": ["tool_use"],
        }
        settings = {"name": "omlx", "version": "1.0.0", "schema": "v1", "models": [model]}
        config = tmp_path / ".continue/config.yaml"
        write(config, json.dumps(settings))  # JSON is YAML
        command = ["cn", "--config", str(config), "--auto", "-p", TASK]
        ran = run(command, tmp_path, CONTINUE_TELEMETRY_ENABLED="0")
    finished(ran, tmp_path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
