"""`omlx logs [-f]`: the server's log in its human form."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.output import DIM, YELLOW, styled
from omlx.errors import ConfigError
from omlx.settings.schema import table
from omlx.telemetry.log import LEVELS, LogLine, log_file, parse_line
from omlx.terminal_text import escaped

_LINES: Final = 50
_WARNING: Final = LEVELS.index("warning")


def add_arguments(parser: ArgumentParser) -> None:
    follow, lines = sentence("cli.service.follow", {}), sentence("cli.logs.lines", {})
    parser.add_argument("-f", "--follow", action="store_true", help=follow)
    parser.add_argument("-n", "--lines", metavar="N", type=int, default=_LINES, help=lines)
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    path = log_file(configured(arguments).current.resolve().settings.home)
    if not path.exists():
        raise ConfigError("service.no_log", path=str(path))
    # -F follows the name: the file is rotated.
    command = ["tail", "-n", str(max(arguments.lines, 0)), str(path)]
    if arguments.follow:
        command.insert(1, "-F")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tail:
        assert tail.stdout is not None
        try:
            _write(tail.stdout)
        finally:
            tail.terminate()
    return 0


def _write(lines: Iterable[bytes]) -> None:
    for raw in lines:
        line = parse_line(raw)
        if line is not None:
            sys.stdout.write(_shown(line) + "\n")
            sys.stdout.flush()


def _shown(line: LogLine) -> str:
    at = styled(datetime.fromtimestamp(line.at).isoformat(" ", "seconds"), DIM)
    if LEVELS.index(line.level) < _WARNING:
        return f"{at} {escaped(line.text)}"
    return f"{at} {styled(f'{line.level}: {escaped(line.text)}', YELLOW)}"
