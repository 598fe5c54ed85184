"""Configuration of coding agents and other programs for a model of this server; its addresses.

No file of the user's is written: an agent reads variables, flags, or files in a temporary folder.
Names of variables and keys are those of the programs' documentation.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

KEY_VARIABLE: Final = "OMLX_API_KEY"
"""Environment variable of the API key, for programs with such a variable."""

NO_KEY: Final = "none"
"""Placeholder key: programs require a key, also for a server without one."""

_OUTSIDE: Final = ("192.0.2.1", 9)
"""Address for documentation, never in use: the system names the interface, and sends nothing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address and model of this server."""

    address: str  # like `http://127.0.0.1:8000`
    model: str
    context_length: int | None = None  # tokens; None if unknown
    with_key: bool = False  # the server has an API key

    @property
    def openai(self) -> str:
        return f"{self.address}/v1"

    @property
    def output_length(self) -> int | None:
        """Tokens — share of the context left for an answer; the conversation takes the rest."""
        if self.context_length is None:
            return None
        return max(min(self.context_length // 4, MAX_OUTPUT), 1)


MAX_OUTPUT: Final = 32_000
"""Tokens — the maximum requested by coding agents."""


def quoted(text: str) -> str:
    """Return a string literal of Python and of TOML: both read JSON's escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml(part)}" for name, part in value.items()) + "}"
    return quoted(value) if isinstance(value, str) else str(value)


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a program: arguments before the user's own, variables, files by name.

    `{folder}` in an argument or a variable is replaced by the folder of the files.
    """

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        arguments = [part.replace("{folder}", str(folder)) for part in self.arguments]
        variables = {
            name: value.replace("{folder}", str(folder)) for name, value in self.variables.items()
        }
        return arguments, variables


@dataclass(frozen=True, slots=True)
class Agent:
    """Coding agent that `omlx launch` starts."""

    name: str
    program: str
    install: str  # command that installs the program
    start: Callable[[Endpoint, str], Start]  # takes the endpoint and its key
    least_context: int  # tokens with which a session of many turns finishes

    def lacks_context(self, tokens: int | None) -> bool:
        # A context of unknown length (None) lacks nothing.
        return tokens is not None and tokens < self.least_context


def claude_variables(endpoint: Endpoint, key: str) -> dict[str, str]:
    """Return variables that direct each model of Claude Code, large and small, to this model.

    Claude Code takes the context length from the variable only for names other than `claude-…`.
    """
    variables = {
        "ANTHROPIC_BASE_URL": endpoint.address,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_MODEL": endpoint.model,
        **{f"ANTHROPIC_DEFAULT_{size}_MODEL": endpoint.model for size in _SIZES},
    }
    context, output = endpoint.context_length, endpoint.output_length
    if context is not None and output is not None:
        window = str(_claude_context(context, output))
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = window
        # Without this variable, compaction waits for a refused request.
        variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = window
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(output)
    return variables


_SIZES: Final = ("OPUS", "SONNET", "HAIKU")


def _claude_context(context: int, output: int) -> int:
    """Return the context length, in tokens, to report to Claude Code."""
    reserved = min(output, _CLAUDE_OUTPUT) + _CLAUDE_MARGIN
    # Claude Code compacts when only the answer's share is left, minus a margin. A short context has
    # no such margin: of 32,768 tokens only 11,576 would be used, less than its own instructions
    # take.
    return max(context, context - output + reserved)


_CLAUDE_OUTPUT: Final = 20_000
"""Tokens — Claude Code's maximum reserve for an answer."""

_CLAUDE_MARGIN: Final = 13_000
"""Tokens — left free by Claude Code before it compacts, in addition to the answer's."""


def codex_config(endpoint: Endpoint) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model": endpoint.model,
        "model_provider": "omlx",
        # Web search runs on OpenAI's servers.
        "web_search": "disabled",
    }
    if endpoint.context_length is not None:
        config["model_context_window"] = endpoint.context_length
    provider = {"name": "omlx", "base_url": endpoint.openai, "wire_api": "responses"}
    if endpoint.with_key:
        provider["env_key"] = KEY_VARIABLE
    config["model_providers"] = {"omlx": provider}
    return config


def opencode_config(endpoint: Endpoint) -> dict[str, Any]:
    model: dict[str, Any] = {}
    if endpoint.context_length is not None:
        model["limit"] = {"context": endpoint.context_length, "output": endpoint.output_length}
    key = f"{{env:{KEY_VARIABLE}}}" if endpoint.with_key else NO_KEY
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "omlx",
        "options": {"baseURL": endpoint.openai, "apiKey": key},
        "models": {endpoint.model: model},
    }
    return {
        "$schema": "https://opencode.ai/config.json",
        "model": f"omlx/{endpoint.model}",
        "provider": {"omlx": provider},
    }


def qwen_config(endpoint: Endpoint) -> dict[str, Any]:
    model: dict[str, Any] = {
        "id": endpoint.model,
        "envKey": KEY_VARIABLE,
        "baseUrl": endpoint.openai,
    }
    if endpoint.context_length is not None:
        # There is no variable for the context.
        model["generationConfig"] = {"contextWindowSize": endpoint.context_length}
    config: dict[str, Any] = {
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": endpoint.model},
        "modelProviders": {"openai": [model]},
    }
    if not endpoint.with_key:
        config["env"] = {KEY_VARIABLE: NO_KEY}
    return config


def _claude(endpoint: Endpoint, key: str) -> Start:
    return Start(variables=claude_variables(endpoint, key))


def _codex(endpoint: Endpoint, key: str) -> Start:
    arguments = []
    for name, value in codex_config(endpoint).items():
        arguments += ["-c", f"{name}={toml(value)}"]
    return Start(tuple(arguments), {KEY_VARIABLE: key})


def _opencode(endpoint: Endpoint, key: str) -> Start:
    config = json.dumps(opencode_config(endpoint))
    return Start(variables={"OPENCODE_CONFIG_CONTENT": config, KEY_VARIABLE: key})


def _qwen(endpoint: Endpoint, key: str) -> Start:
    # System settings take precedence over the user's, which stay unchanged.
    variables = {"QWEN_CODE_SYSTEM_SETTINGS_PATH": "{folder}/settings.json", KEY_VARIABLE: key}
    return Start(variables=variables, files={"settings.json": json.dumps(qwen_config(endpoint))})


def _aider(endpoint: Endpoint, key: str) -> Start:
    model = f"openai/{endpoint.model}"
    # Context lengths, in the form of LiteLLM's model file.
    facts: dict[str, Any] = {"litellm_provider": "openai", "mode": "chat"}
    if endpoint.context_length is not None:
        facts["max_input_tokens"] = endpoint.context_length
        facts["max_output_tokens"] = endpoint.output_length
    return Start(
        ("--model", model, "--model-metadata-file", "{folder}/models.json"),
        {"OPENAI_API_BASE": endpoint.openai, "OPENAI_API_KEY": key},
        {"models.json": json.dumps({model: facts})},
    )


AGENTS: Final = {
    agent.program: agent
    for agent in (
        Agent("Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", _claude, 65_536),
        Agent("Codex", "codex", "npm install -g @openai/codex", _codex, 16_384),
        Agent("OpenCode", "opencode", "npm install -g opencode-ai", _opencode, 16_384),
        Agent("Qwen Code", "qwen", "npm install -g @qwen-code/qwen-code", _qwen, 32_768),
        Agent("aider", "aider", "uv tool install aider-chat", _aider, 8_192),
    )
}
"""Agents by program name."""


def machine_names() -> list[str]:
    """Return this machine's names on the local network, Bonjour's first."""
    name = socket.gethostname().lower().removesuffix(".local")
    return [f"{name}.local", name]


def network_urls(address: str) -> list[str]:
    """Return URLs for other machines of the local network, of the server at `address`."""
    parts = urlsplit(address)
    hosts = [machine_names()[0]]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_OUTSIDE)  # without a network there is no route
        hosts.insert(0, str(probe.getsockname()[0]))
    return [f"{parts.scheme}://{host}:{parts.port}" for host in hosts]
