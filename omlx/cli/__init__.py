"""The command line, and its process's environment variables: no downloads, no telemetry.

`serve` is the composition root: builds all parts and passes them on.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from omlx.catalog import sentence

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_added: set[str] = set()


def add_actions(
    parser: ArgumentParser, command: str, actions: Mapping[str, Callable[..., None]]
) -> Iterator[tuple[str, ArgumentParser]]:
    """Add the actions of a command; yield each name with the parser of the arguments."""
    parsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in actions.items():
        text = sentence(f"cli.{command}.{name}.help", {})
        added = parsers.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(action=action)
        yield name, added


def installed(package: str) -> str:
    """Return the version of a package, or `missing`."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def set_environment(*, online: bool) -> None:
    """Set `ENVIRONMENT`, unless set by the user; `online` commands may download."""
    for name, value in ENVIRONMENT.items():
        if name not in os.environ and not (online and name == "HF_HUB_OFFLINE"):
            os.environ[name] = value
            _added.add(name)


def online_environment() -> dict[str, str]:
    """Return the environment of child processes: the user's own, online, without telemetry."""
    own = {name: value for name, value in os.environ.items() if name not in _added}
    online = {name: value for name, value in ENVIRONMENT.items() if name != "HF_HUB_OFFLINE"}
    return {**online, **own}
