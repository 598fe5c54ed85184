"""Programs that use this server: their configuration, and their User-Agents.

Commands and configurations never hold the API key itself.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from omlx.clients.agents import (
    AGENTS,
    KEY_VARIABLE,
    NO_KEY,
    Endpoint,
    claude_variables,
    codex_config,
    opencode_config,
    quoted,
    qwen_config,
    toml,
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """Text to copy. `file` is the target file, or the language; None for a terminal."""

    text: str
    file: str | None = None


def curl(endpoint: Endpoint, prompt: str, **fields: Any) -> Snippet:
    """Return a command that streams a chat completion, with further `fields` of its body."""
    fields |= {"stream": True, "messages": [{"role": "user", "content": prompt}]}
    return _post(endpoint, "chat/completions", fields, "-N ")


def embeddings_curl(endpoint: Endpoint, text: str) -> Snippet:
    return _post(endpoint, "embeddings", {"input": text})


def rerank_curl(endpoint: Endpoint, text: str) -> Snippet:
    return _post(endpoint, "rerank", {"query": text, "documents": [text, "?"]})


def _post(endpoint: Endpoint, path: str, fields: dict[str, Any], options: str = "") -> Snippet:
    body = {"model": endpoint.model, **fields}
    url, data = f"{endpoint.openai}/{path}", json.dumps(body, ensure_ascii=False)
    parts = [f"curl {options}{shlex.quote(url)}"]
    if endpoint.with_key:
        parts.append(f'-H "Authorization: Bearer ${KEY_VARIABLE}"')
    parts.append(f"-H 'Content-Type: application/json' -d {shlex.quote(data)}")
    return Snippet(" ".join(parts))


def openai_python(endpoint: Endpoint, prompt: str) -> Snippet:
    imports, key = _python_key(endpoint)
    return Snippet(
        f"""{imports}from openai import OpenAI

client = OpenAI(base_url={quoted(endpoint.openai)}, api_key={key})
answer = client.chat.completions.create(
    model={quoted(endpoint.model)},
    messages=[{{"role": "user", "content": {quoted(prompt)}}}],
)
print(answer.choices[0].message.content)""",
        "Python",
    )


def anthropic_python(endpoint: Endpoint, prompt: str) -> Snippet:
    imports, key = _python_key(endpoint)
    return Snippet(
        f"""{imports}from anthropic import Anthropic

client = Anthropic(base_url={quoted(endpoint.address)}, api_key={key})
message = client.messages.create(
    model={quoted(endpoint.model)},
    max_tokens=1024,
    messages=[{{"role": "user", "content": {quoted(prompt)}}}],
)
print("".join(block.text for block in message.content if block.type == "text"))""",
        "Python",
    )


def ollama_python(endpoint: Endpoint, prompt: str) -> Snippet:
    imports, headers = "", ""
    if endpoint.with_key:
        imports, key = _python_key(endpoint)
        headers = f', headers={{"Authorization": "Bearer " + {key}}}'
    return Snippet(
        f"""{imports}from ollama import Client

client = Client({quoted(endpoint.address)}{headers})
answer = client.chat(
    {quoted(endpoint.model)},
    [{{"role": "user", "content": {quoted(prompt)}}}],
)
print(answer.message.content)""",
        "Python",
    )


def openai_javascript(endpoint: Endpoint, prompt: str) -> Snippet:
    key = f"process.env.{KEY_VARIABLE}" if endpoint.with_key else quoted(NO_KEY)
    return Snippet(
        f"""import OpenAI from "openai";

const client = new OpenAI({{ baseURL: {quoted(endpoint.openai)}, apiKey: {key} }});
const answer = await client.chat.completions.create({{
  model: {quoted(endpoint.model)},
  messages: [{{ role: "user", content: {quoted(prompt)} }}],
}});
console.log(answer.choices[0].message.content);""",
        "JavaScript",
    )


def claude_code(endpoint: Endpoint, prompt: str) -> Snippet:
    lines = []
    for name, value in claude_variables(endpoint, NO_KEY).items():
        secret = name == "ANTHROPIC_AUTH_TOKEN" and endpoint.with_key
        lines.append(f"export {name}=" + (_SHELL_KEY if secret else shlex.quote(value)))
    return Snippet("\n".join([*lines, "claude"]))


def codex(endpoint: Endpoint, prompt: str) -> Snippet:
    config = codex_config(endpoint)
    providers = config.pop("model_providers")
    lines = [f"{name} = {toml(value)}" for name, value in config.items()]
    for provider, values in providers.items():
        lines += ["", f"[model_providers.{provider}]"]
        lines += [f"{name} = {toml(value)}" for name, value in values.items()]
    return Snippet("\n".join(lines), "~/.codex/config.toml")


def opencode(endpoint: Endpoint, prompt: str) -> Snippet:
    config = json.dumps(opencode_config(endpoint), indent=2, ensure_ascii=False)
    return Snippet(config, "opencode.json")


def qwen_code(endpoint: Endpoint, prompt: str) -> Snippet:
    config = json.dumps(qwen_config(endpoint), indent=2, ensure_ascii=False)
    return Snippet(config, "~/.qwen/settings.json")


def aider(endpoint: Endpoint, prompt: str) -> Snippet:
    key = _SHELL_KEY if endpoint.with_key else NO_KEY
    words = [
        f"aider --openai-api-base {shlex.quote(endpoint.openai)}",
        f"--openai-api-key {key}",
        f"--model {shlex.quote(f'openai/{endpoint.model}')}",
    ]
    return Snippet(" ".join(words))


def ollama_address(endpoint: Endpoint, prompt: str) -> Snippet:
    return Snippet(endpoint.address)


def openai_address(endpoint: Endpoint, prompt: str) -> Snippet:
    return Snippet(endpoint.openai)


_SHELL_KEY = f'"${KEY_VARIABLE}"'


def _python_key(endpoint: Endpoint) -> tuple[str, str]:
    # The import for the key, and the key as an expression.
    if endpoint.with_key:
        return "import os\n\n", f'os.environ["{KEY_VARIABLE}"]'
    return "", quoted(NO_KEY)


class Kind(StrEnum):
    AGENT = "agents"
    OLLAMA = "ollama_apps"
    """Apps configured with the address of Ollama's API; they list the models themselves."""
    OPENAI = "openai_apps"
    LIBRARY = "libraries"


@dataclass(frozen=True, slots=True)
class App:
    """Client program of this server."""

    id: str
    name: str
    kind: Kind
    snippet: Callable[[Endpoint, str], Snippet]  # takes the endpoint and a question
    agents: tuple[str, ...] = ()  # prefixes of the User-Agent; empty if many programs send the same
    program: str | None = None  # name for `omlx launch`

    def sends(self, client: str) -> bool:
        return client.startswith(self.agents) if self.agents else False

    def least_context(self, endpoint: Endpoint) -> int | None:
        """Return the least context, in tokens, if the model's context is shorter; else None."""
        agent = AGENTS.get(self.program or "")
        if agent is None or not agent.lacks_context(endpoint.context_length):
            return None
        return agent.least_context

    def launch(self, endpoint: Endpoint, omlx: Sequence[str] = ("omlx",)) -> str | None:
        """Return a command to start the program; `omlx` begins the command line."""
        if self.program is None:
            return None
        return shlex.join([*omlx, "launch", "--model", endpoint.model, self.program])


APPS: Final = (
    App("claude", "Claude Code", Kind.AGENT, claude_code, ("claude-cli/",), "claude"),
    App("codex", "Codex", Kind.AGENT, codex, ("codex",), "codex"),
    App("opencode", "OpenCode", Kind.AGENT, opencode, ("opencode/",), "opencode"),
    App("qwen", "Qwen Code", Kind.AGENT, qwen_code, ("QwenCode/",), "qwen"),
    App("aider", "aider", Kind.AGENT, aider, (), "aider"),
    App("copilot", "Copilot", Kind.OLLAMA, ollama_address, ("GitHubCopilotChat/",)),
    App("open-webui", "Open WebUI", Kind.OLLAMA, ollama_address),
    App("zed", "Zed", Kind.OLLAMA, ollama_address, ("Zed/",)),
    App("raycast", "Raycast", Kind.OLLAMA, ollama_address, ("Raycast/",)),
    App("enchanted", "Enchanted", Kind.OLLAMA, ollama_address, ("Enchanted/",)),
    App("xcode", "Xcode", Kind.OPENAI, openai_address, ("Xcode/",)),
    App("cline", "Cline, Roo Code", Kind.OPENAI, openai_address),
    App("continue", "Continue", Kind.OPENAI, openai_address),
    App("curl", "curl", Kind.LIBRARY, curl, ("curl/",)),
    App("openai", "OpenAI", Kind.LIBRARY, openai_python, ("OpenAI/Python", "AsyncOpenAI/Python")),
    App("openai-js", "OpenAI", Kind.LIBRARY, openai_javascript, ("OpenAI/JS",)),
    App(
        "anthropic",
        "Anthropic",
        Kind.LIBRARY,
        anthropic_python,
        ("Anthropic/Python", "AsyncAnthropic/Python"),
    ),
    App("ollama", "Ollama", Kind.LIBRARY, ollama_python, ("ollama-python/",)),
)


def client_name(agent: str) -> str:
    """Return the program of a User-Agent, `claude-cli/2.0.1`; for browsers the whole text."""
    first, _, _ = agent.partition(" ")
    if "/" in first and not first.startswith("Mozilla/"):
        return first
    return agent
