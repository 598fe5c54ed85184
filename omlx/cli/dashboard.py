"""`omlx dashboard`: open the dashboard with a one-time login link, or print the link."""

from __future__ import annotations

import os
import sys
import webbrowser
from argparse import ArgumentParser, Namespace

from omlx.admin.credentials import Credentials
from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.serve.address import find_server
from omlx.errors import ConfigError
from omlx.settings.schema import table


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--print", dest="quiet", action="store_true", help=sentence("cli.dashboard.print", {})
    )
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    home = configured(arguments).current.resolve().settings.home
    address = find_server(home)
    if address is None:
        raise ConfigError("config.not_running", home=str(home))
    link = Credentials(home).link(address)
    if arguments.quiet or not has_browser() or not webbrowser.open(link):
        sys.stdout.write(f"{link}\n")
    else:
        sys.stdout.write(sentence("cli.dashboard.opened", {"url": address}) + "\n")
    return 0


def has_browser() -> bool:
    """Return whether a browser window would open on the user's screen."""
    if not sys.stdout.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))
