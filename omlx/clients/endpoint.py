"""What a program must know to use a model of this server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEY_VARIABLE: Final = "OMLX_API_KEY"
"""The environment variable that holds the API key where a program reads it from one."""

NO_KEY: Final = "none"
"""Programs insist on some key, also for a server without one."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`address` is like `http://127.0.0.1:8000`, `context_length` in tokens, None if unknown;
    `with_key`: the server has an API key."""

    address: str
    model: str
    context_length: int | None = None
    with_key: bool = False

    @property
    def openai(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.address}/v1"

    @property
    def output_length(self) -> int | None:
        """Tokens to leave for an answer, of a context that holds the conversation too."""
        if self.context_length is None:
            return None
        return max(min(self.context_length // 4, MAX_OUTPUT), 1)


MAX_OUTPUT: Final = 32_000
"""Tokens that coding agents ask for at most."""
