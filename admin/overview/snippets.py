"""Commands and configurations that connect clients to this server, without the API key itself."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KEY_VARIABLE: Final = "OMLX_API_KEY"


@dataclass(frozen=True, slots=True)
class Snippet:
    """`name` is the client's, `file` the file that the text belongs in, None for a terminal."""

    name: str
    text: str
    file: str | None = None


def snippets(address: str, model: str, prompt: str, *, with_key: bool) -> Sequence[Snippet]:
    """`address` is like `http://127.0.0.1:8000`, `with_key` whether the server has an API key."""
    return (
        Snippet("curl", curl(address, model, prompt, with_key=with_key)),
        Snippet("OpenAI", _openai(address, model, prompt, with_key), "Python"),
        Snippet("Claude Code", _claude_code(address, model, with_key)),
        Snippet("Codex", _codex(address, model, with_key), "~/.codex/config.toml"),
        Snippet("OpenCode", _opencode(address, model, with_key), "opencode.json"),
    )


def curl(address: str, model: str, prompt: str, *, with_key: bool) -> str:
    """Return a command that streams a chat completion."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": model, "stream": True, "messages": messages}
    url, data = f"{address}/v1/chat/completions", json.dumps(body, ensure_ascii=False)
    parts = [f"curl -N {shlex.quote(url)}"]
    if with_key:
        parts.append(f'-H "Authorization: Bearer ${KEY_VARIABLE}"')
    parts.append(f"-H 'Content-Type: application/json' -d {shlex.quote(data)}")
    return " ".join(parts)


def _openai(address: str, model: str, prompt: str, with_key: bool) -> str:
    key = _key(with_key, f'os.environ["{KEY_VARIABLE}"]', '"none"')
    imports = _key(with_key, "import os\n\n", "")
    return f"""{imports}from openai import OpenAI

client = OpenAI(base_url={_quoted(f"{address}/v1")}, api_key={key})
answer = client.chat.completions.create(
    model={_quoted(model)},
    messages=[{{"role": "user", "content": {_quoted(prompt)}}}],
)
print(answer.choices[0].message.content)"""


def _claude_code(address: str, model: str, with_key: bool) -> str:
    """Map each model that the client asks for, large and small, to this one."""
    key, name = _key(with_key, f'"${KEY_VARIABLE}"'), shlex.quote(model)
    values = {"BASE_URL": shlex.quote(address), "AUTH_TOKEN": key, "MODEL": name}
    values |= {f"DEFAULT_{size}_MODEL": name for size in ("OPUS", "SONNET", "HAIKU")}
    lines = [f"export ANTHROPIC_{name}={value}" for name, value in values.items()]
    return "\n".join([*lines, "claude"])


def _codex(address: str, model: str, with_key: bool) -> str:
    config = f"""model = {_quoted(model)}
model_provider = "omlx"
web_search = "disabled"

[model_providers.omlx]
name = "omlx"
base_url = {_quoted(f"{address}/v1")}
wire_api = "responses\""""
    return config + _key(with_key, f'\nenv_key = "{KEY_VARIABLE}"', "")


def _opencode(address: str, model: str, with_key: bool) -> str:
    key = _key(with_key, f"{{env:{KEY_VARIABLE}}}")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "omlx",
        "options": {"baseURL": f"{address}/v1", "apiKey": key},
        "models": {model: {}},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"omlx/{model}",
        "provider": {"omlx": provider},
    }
    return json.dumps(config, indent=2, ensure_ascii=False)


def _quoted(text: str) -> str:
    """Return a string literal of Python and of TOML, which both read JSON's escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(with_key: bool, reference: str, placeholder: str = "none") -> str:
    """Clients insist on some key, also for a server without one."""
    return reference if with_key else placeholder
