"""`omlx session save|open|fork`: conversations of the running server in files."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.client import Client, server_for
from omlx.cli.output import size
from omlx.errors import ConfigError
from omlx.settings.schema import table

FOLDER: Final = "sessions"
"""Folder, in the home folder, in which the server writes and reads."""


def add_arguments(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions = {"save": (_save, "id file"), "open": (_open, "file"), "fork": (_fork, "id")}
    for name, (action, words) in actions.items():
        text = sentence(f"cli.session.{name}.help", {})
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(action=action)
        for word in words.split():
            text = sentence(f"cli.session.{word}", {})
            command.add_argument(word, metavar=word.upper(), help=text)
        command.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    settings = configured(arguments).current.resolve().settings
    with server_for(settings.home, None) as address:
        client = Client(address, settings.api_key)
        try:
            arguments.action(arguments, client, settings.home / FOLDER)
        except OSError as error:
            detail = error.strerror or str(error)
            file = str(getattr(arguments, "file", ""))
            raise ConfigError("cli.session.unreadable", file=file, detail=detail) from error
    return 0


def _save(arguments: Namespace, client: Client, folder: Path) -> None:
    target = Path(arguments.file)
    if target.is_dir() or not target.resolve().parent.is_dir():
        raise ConfigError("cli.session.no_target", file=str(target))
    path = folder / secrets.token_hex(16)
    try:
        saved = client.post("/v1/sessions/save", {"id": arguments.id, "file": path.name})
        shutil.move(path, target)
    finally:
        path.unlink(missing_ok=True)
    figures = {"file": str(target), "size": size(saved["bytes"])}
    _print("cli.session.saved", saved, **figures)


def _open(arguments: Namespace, client: Client, folder: Path) -> None:
    source = Path(arguments.file).resolve()
    path = folder / secrets.token_hex(16)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with suppress(OSError):  # another file system
            os.link(source, path)
        if not path.exists():
            shutil.copyfile(source, path)
        opened = client.post("/v1/sessions/open", {"file": path.name})
    finally:
        path.unlink(missing_ok=True)
    _print("cli.session.opened", opened, id=opened["id"])


def _fork(arguments: Namespace, client: Client, folder: Path) -> None:
    sys.stdout.write(client.post(f"/v1/responses/{quote(arguments.id)}/fork")["id"] + "\n")


def _print(code: str, record: Mapping[str, Any], **params: str) -> None:
    """Print figures of a session, and the reason for missing states."""
    names = ("model", "tokens", "restored", "computed")
    params |= {name: str(record[name]) for name in names if name in record}
    sys.stdout.write(sentence(code, params) + "\n")
    if record["reason"] is not None:
        sys.stdout.write(record["reason"]["message"] + "\n")
