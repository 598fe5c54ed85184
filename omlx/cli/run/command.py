"""`omlx run MODEL [PROMPT]`: chat in the terminal with a model of the running server.

Without a running server, a new server runs until the chat ends. With a prompt, or with text on
standard input, there is one answer and no chat. Ctrl-C stops an answer, Ctrl-D ends the chat.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path

from omlx.catalog import sentence
from omlx.cli.arguments import configured, model_id
from omlx.cli.client import Client, server_for
from omlx.cli.run.conversation import Conversation, attachment
from omlx.cli.run.keyboard import Keyboard
from omlx.cli.run.screen import Screen
from omlx.errors import BadRequest, OmlxError
from omlx.settings.schema import table
from omlx.terminal_text import escaped


def add_arguments(parser: ArgumentParser) -> None:
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
