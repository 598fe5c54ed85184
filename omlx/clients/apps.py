"""The programs that the dashboard says how to connect, and the User-Agents that they send."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from omlx.clients import snippets
from omlx.clients.agents import AGENTS
from omlx.clients.endpoint import Endpoint
from omlx.clients.snippets import Snippet


class Kind(StrEnum):
    AGENT = "agents"
    OLLAMA = "ollama_apps"
    """Is given the address of Ollama's API, and finds the models itself."""
    OPENAI = "openai_apps"
    LIBRARY = "libraries"


@dataclass(frozen=True, slots=True)
class App:
    """`snippet` takes the endpoint and a question. `agents` are beginnings of the User-Agent of its
    requests, none where many programs send the same; `program` is its name for `omlx launch`."""

    id: str
    name: str
    kind: Kind
    snippet: Callable[[Endpoint, str], Snippet]
    agents: tuple[str, ...] = ()
    program: str | None = None

    def sends(self, client: str) -> bool:
        """Whether a User-Agent is one of this program."""
        return client.startswith(self.agents) if self.agents else False

    def least_context(self, endpoint: Endpoint) -> int | None:
        """Return the tokens of context that it needs, where the model's is shorter."""
        agent = AGENTS.get(self.program or "")
        if agent is None or not agent.lacks_context(endpoint.context_length):
            return None
        return agent.least_context

    def launch(self, endpoint: Endpoint) -> str | None:
        """Return the command that starts it with this model, None if there is none."""
        if self.program is None:
            return None
        return f"omlx launch --model {shlex.quote(endpoint.model)} {self.program}"


APPS: Final = (
    App("claude", "Claude Code", Kind.AGENT, snippets.claude_code, ("claude-cli/",), "claude"),
    App("codex", "Codex", Kind.AGENT, snippets.codex, ("codex",), "codex"),
    App("opencode", "OpenCode", Kind.AGENT, snippets.opencode, ("opencode/",), "opencode"),
    App("qwen", "Qwen Code", Kind.AGENT, snippets.qwen_code, ("QwenCode/",), "qwen"),
    App("aider", "aider", Kind.AGENT, snippets.aider, (), "aider"),
    App("copilot", "Copilot", Kind.OLLAMA, snippets.ollama_address, ("GitHubCopilotChat/",)),
    App("open-webui", "Open WebUI", Kind.OLLAMA, snippets.ollama_address),
    App("zed", "Zed", Kind.OLLAMA, snippets.ollama_address, ("Zed/",)),
    App("raycast", "Raycast", Kind.OLLAMA, snippets.ollama_address, ("Raycast/",)),
    App("enchanted", "Enchanted", Kind.OLLAMA, snippets.ollama_address, ("Enchanted/",)),
    App("xcode", "Xcode", Kind.OPENAI, snippets.openai_address, ("Xcode/",)),
    App("cline", "Cline, Roo Code", Kind.OPENAI, snippets.openai_address),
    App("continue", "Continue", Kind.OPENAI, snippets.openai_address),
    App("curl", "curl", Kind.LIBRARY, snippets.curl, ("curl/",)),
    App(
        "openai",
        "OpenAI",
        Kind.LIBRARY,
        snippets.openai_python,
        ("OpenAI/Python", "AsyncOpenAI/Python"),
    ),
    App("openai-js", "OpenAI", Kind.LIBRARY, snippets.openai_javascript, ("OpenAI/JS",)),
    App(
        "anthropic",
        "Anthropic",
        Kind.LIBRARY,
        snippets.anthropic_python,
        ("Anthropic/Python", "AsyncAnthropic/Python"),
    ),
    App("ollama", "Ollama", Kind.LIBRARY, snippets.ollama_python, ("ollama-python/",)),
)


def client_name(agent: str) -> str:
    """Return the program of a User-Agent, `claude-cli/2.0.1`; of browsers, all of it."""
    first, _, _ = agent.partition(" ")
    if "/" in first and not first.startswith("Mozilla/"):
        return first
    return agent
