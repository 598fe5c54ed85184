"""`omlx run MODEL [PROMPT]`: chat in the terminal with a model of the running server.

Without a running server, a new server runs until the chat ends. With a prompt, or with text on
standard input, there is one answer and no chat. Ctrl-C stops an answer, Ctrl-D ends the chat.
"""

from __future__ import annotations

import base64
import mimetypes
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from omlx.catalog import escaped, sentence
from omlx.cli.arguments import configured, model_id
from omlx.cli.client import Client, server_for
from omlx.cli.run.terminal import Keyboard, Piece, Screen
from omlx.errors import BadRequest, OmlxError, os_errors
from omlx.settings.schema import table

MAX_BYTES: Final = 16 << 20
"""Bytes of an attached file — a body is limited, and base64 adds a third."""

Part: TypeAlias = dict[str, Any]


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
    with os_errors(BadRequest, "run.file", name=str(path)):
        if path.stat().st_size > MAX_BYTES:
            raise BadRequest("run.file_size", name=path.name, limit_mb=MAX_BYTES >> 20)
        data = base64.b64encode(path.read_bytes()).decode()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if image and not kind.startswith("image/"):
        raise BadRequest("run.not_image", name=path.name)
    url = f"data:{kind};base64,{data}"
    if image:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": path.name, "file_data": url}}


def run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=sentence("cli.run.model", {}))
    parser.add_argument("prompt", metavar="PROMPT", nargs="*", help=sentence("cli.run.prompt", {}))
    parser.add_argument("--system", metavar="TEXT", help=sentence("cli.run.system", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    settings = configured(arguments).current.resolve().settings
    words = [" ".join(arguments.prompt)]
    if not sys.stdin.isatty():
        words.append(sys.stdin.read().strip())
    prompt = "\n\n".join(filter(None, words))
    if not prompt and not sys.stdin.isatty():
        raise BadRequest("run.no_prompt")
    with server_for(settings.home, arguments.model) as address:
        client = Client(address, settings.api_key)
        card = client.model(model_id(arguments.model))
        conversation = Conversation(client, card["id"], arguments.system)
        chat = Chat(conversation, Screen(), images="image" in card["input_modalities"])
        if prompt:
            chat.ask(prompt)
        else:
            chat.run(Keyboard(settings.home))
    return 0


class Chat:
    """A conversation between keyboard and screen. `images`: the model reads images."""

    def __init__(self, conversation: Conversation, screen: Screen, *, images: bool) -> None:
        self._conversation = conversation
        self._screen = screen
        self._images = images

    def run(self, keyboard: Keyboard) -> None:
        """Answer questions until the end of input; errors are shown and end nothing."""
        self._screen.note("cli.run.welcome", model=self._conversation.model)
        with keyboard:
            while (text := keyboard.read()) is not None:
                try:
                    if not self._command(text):
                        return
                except OmlxError as error:
                    self._screen.error(error.message)

    def ask(self, text: str) -> None:
        """Stream the answer to the screen; Ctrl-C stops the answer, and keeps the part received."""
        with suppress(KeyboardInterrupt), self._screen.answer() as answer:
            for piece in self._conversation.ask(text):
                answer.feed(piece)

    def _command(self, text: str) -> bool:
        """Obey a command, or ask. Return whether the chat continues."""
        name, _, rest = text.strip().partition(" ")
        match name:
            case "":
                pass
            case "/exit" | "/bye":
                return False
            case "/help":
                self._screen.note("cli.run.commands")
            case "/clear":
                self._conversation.clear()
                self._screen.note("cli.run.cleared")
            case "/file" | "/image":
                self._attach(rest.strip(), image=name == "/image")
            case _ if name.startswith("/") and name[1:].isalpha():
                raise BadRequest("run.command", command=escaped(name))
            case _:
                self.ask(text)
        return True

    def _attach(self, name: str, *, image: bool) -> None:
        if image and not self._images:
            raise BadRequest("run.no_images", model=self._conversation.model)
        path = Path(name.strip("'\"")).expanduser()
        self._conversation.attach(attachment(path, image=image))
        self._screen.note("cli.run.attached", name=path.name)
