"""Commands and configurations that connect clients to this server, without the API key itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from omlx.clients.agents import claude_variables, codex_config, opencode_config
from omlx.clients.endpoint import KEY_VARIABLE, NO_KEY, Endpoint
from omlx.clients.literals import quoted, toml


@dataclass(frozen=True, slots=True)
class Snippet:
    """`name` is the client's, `file` the file that the text belongs in, None for a terminal."""

    name: str
    text: str
    file: str | None = None


def snippets(endpoint: Endpoint, prompt: str) -> Sequence[Snippet]:
    return (
        Snippet("curl", curl(endpoint, prompt)),
        Snippet("OpenAI", _openai(endpoint, prompt), "Python"),
        Snippet("Claude Code", _claude_code(endpoint)),
        Snippet("Codex", _codex(endpoint), "~/.codex/config.toml"),
        Snippet("OpenCode", _opencode(endpoint), "opencode.json"),
    )


def curl(endpoint: Endpoint, prompt: str) -> str:
    """Return a command that streams a chat completion."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": endpoint.model, "stream": True, "messages": messages}
    url, data = f"{endpoint.openai}/chat/completions", json.dumps(body, ensure_ascii=False)
    parts = [f"curl -N {shlex.quote(url)}"]
    if endpoint.with_key:
        parts.append(f'-H "Authorization: Bearer ${KEY_VARIABLE}"')
    parts.append(f"-H 'Content-Type: application/json' -d {shlex.quote(data)}")
    return " ".join(parts)


def _openai(endpoint: Endpoint, prompt: str) -> str:
    imports, key = "", quoted(NO_KEY)
    if endpoint.with_key:
        imports, key = "import os\n\n", f'os.environ["{KEY_VARIABLE}"]'
    return f"""{imports}from openai import OpenAI

client = OpenAI(base_url={quoted(endpoint.openai)}, api_key={key})
answer = client.chat.completions.create(
    model={quoted(endpoint.model)},
    messages=[{{"role": "user", "content": {quoted(prompt)}}}],
)
print(answer.choices[0].message.content)"""


def _claude_code(endpoint: Endpoint) -> str:
    lines = []
    for name, value in claude_variables(endpoint, NO_KEY).items():
        secret = name == "ANTHROPIC_AUTH_TOKEN" and endpoint.with_key
        lines.append(f"export {name}=" + (f'"${KEY_VARIABLE}"' if secret else shlex.quote(value)))
    return "\n".join([*lines, "claude"])


def _codex(endpoint: Endpoint) -> str:
    config = codex_config(endpoint)
    providers = config.pop("model_providers")
    lines = [f"{name} = {toml(value)}" for name, value in config.items()]
    for provider, values in providers.items():
        lines += ["", f"[model_providers.{provider}]"]
        lines += [f"{name} = {toml(value)}" for name, value in values.items()]
    return "\n".join(lines)


def _opencode(endpoint: Endpoint) -> str:
    return json.dumps(opencode_config(endpoint), indent=2, ensure_ascii=False)
