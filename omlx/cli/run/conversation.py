"""Conversation with a model over the chat API: messages, files, streamed pieces."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from omlx.cli.client import Client
from omlx.errors import BadRequest

MAX_BYTES: Final = 16 << 20
"""Bytes of an attached file — a body is limited, and base64 adds a third."""

Part: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an answer; `thought` is reasoning, `warnings` are sentences about the request."""

    text: str = ""
    thought: str = ""
    warnings: tuple[str, ...] = ()
    cut: bool = False  # ended by the maximum number of tokens


class Conversation:
    """Messages so far, and attachments of the next question."""

    def __init__(self, client: Client, model: str, system: str | None = None) -> None:
        self.model = model
        self._client = client
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, Any]] = []
        self._attached: list[Part] = []

    def clear(self) -> None:
        """Forget all messages and attachments."""
        self.messages, self._attached = [], []

    def attach(self, part: Part) -> None:
        self._attached.append(part)

    def ask(self, text: str) -> Iterator[Piece]:
        """Yield the pieces of the answer; a stopped answer stays in the conversation.

        A refused question is forgotten; attachments are kept for another one. Raises ConfigError.
        """
        content: str | list[Part] = text
        if self._attached:
            content = [*self._attached, {"type": "text", "text": text}]
        question = {"role": "user", "content": content}
        messages = [*self._system, *self.messages, question]
        events = self._client.stream(
            "/v1/chat/completions", {"model": self.model, "messages": messages}
        )
        answer: list[str] = []
        try:
            for event in events:
                piece = _piece(event)
                answer.append(piece.text)
                yield piece
        finally:
            if answer:
                self._attached = []
                reply = {"role": "assistant", "content": "".join(answer)}
                self.messages += [question, reply]


def _piece(event: Any) -> Piece:
    warnings = tuple(warning["message"] for warning in event.get("warnings", ()))
    for choice in event["choices"]:
        delta = choice["delta"]
        cut = choice.get("finish_reason") == "length"
        thought = delta.get("reasoning_content") or ""
        return Piece(delta.get("content") or "", thought, warnings, cut)
    return Piece(warnings=warnings)


def attachment(path: Path, *, image: bool) -> Part:
    """Return a file as a part of a message. Raises BadRequest for an unreadable one."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadRequest("run.file_size", name=path.name, limit_mb=MAX_BYTES >> 20)
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        detail = error.strerror or str(error)
        raise BadRequest("run.file", name=str(path), detail=detail) from error
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if image and not kind.startswith("image/"):
        raise BadRequest("run.not_image", name=path.name)
    url = f"data:{kind};base64,{data}"
    if image:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": path.name, "file_data": url}}
