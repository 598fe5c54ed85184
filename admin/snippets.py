"""What to paste into a terminal or a program so that it talks to this server. Pure; the API key is never shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

_KEY = "OMLX_API_KEY"


@dataclass(frozen=True, slots=True)
class Snippet:
    """`name` is that of the program, the same in all languages; `file` where the text belongs, None for a terminal."""

    name: str
    text: str
    file: str | None = None


def snippets(address: str, model: str, prompt: str, *, with_key: bool) -> Sequence[Snippet]:
    """`address` is `http://127.0.0.1:8000`; `prompt` what the examples ask; `with_key` whether the server wants one."""
    return (
        Snippet("curl", curl(address, model, prompt, with_key=with_key)),
        Snippet("OpenAI", _openai(address, model, prompt, with_key), "Python"),
        Snippet("Claude Code", _claude_code(address, model, with_key)),
        Snippet("Codex", _codex(address, model, with_key), "~/.codex/config.toml"),
        Snippet("OpenCode", _opencode(address, model, with_key), "opencode.json"),
    )


def curl(address: str, model: str, prompt: str, *, with_key: bool) -> str:
    """A command that streams an answer."""
    body = json.dumps(
        {"model": model, "stream": True, "messages": [{"role": "user", "content": prompt}]},
        ensure_ascii=False,
    )
    key = f' -H "Authorization: Bearer ${_KEY}"' if with_key else ""
    quoted = body.replace("'", "'\\''")
    return f"curl -N {address}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{quoted}'"


def _openai(address: str, model: str, prompt: str, with_key: bool) -> str:
    key = f'os.environ["{_KEY}"]' if with_key else '"none"'
    return "\n".join(
        [
            *(["import os", ""] if with_key else []),
            "from openai import OpenAI",
            "",
            f'client = OpenAI(base_url="{address}/v1", api_key={key})',
            "answer = client.chat.completions.create(",
            f"    model={json.dumps(model)},",
            f'    messages=[{{"role": "user", "content": {json.dumps(prompt, ensure_ascii=False)}}}],',
            ")",
            "print(answer.choices[0].message.content)",
        ]
    )


def _claude_code(address: str, model: str, with_key: bool) -> str:
    """Every name that the program may ask for, large and small, is this model."""
    names = ["MODEL", *(f"DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU"))]
    key = f'"${_KEY}"' if with_key else "none"
    values = {"BASE_URL": address, "AUTH_TOKEN": key, **dict.fromkeys(names, model)}
    return "\n".join(
        [*(f"export ANTHROPIC_{name}={value}" for name, value in values.items()), "claude"]
    )


def _codex(address: str, model: str, with_key: bool) -> str:
    return "\n".join(
        [
            f"model = {json.dumps(model)}",
            'model_provider = "omlx"',
            'web_search = "disabled"',
            "",
            "[model_providers.omlx]",
            'name = "omlx"',
            f'base_url = "{address}/v1"',
            'wire_api = "responses"',
            *([f'env_key = "{_KEY}"'] if with_key else []),
        ]
    )


def _opencode(address: str, model: str, with_key: bool) -> str:
    options = {"baseURL": f"{address}/v1", "apiKey": f"{{env:{_KEY}}}" if with_key else "none"}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "omlx",
        "options": options,
        "models": {model: {}},
    }
    config = {
        "$schema": "https://opencode.ai/config.json",
        "model": f"omlx/{model}",
        "provider": {"omlx": provider},
    }
    return json.dumps(config, indent=2, ensure_ascii=False)
