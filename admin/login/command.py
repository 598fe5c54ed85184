"""The command that prints a login link, as it is typed on the server's machine."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from omlx.server.guard import is_loopback
from omlx.settings.schema import table

PROGRAM = "omlx"


def login_command(home: Path, client: str | None) -> str:
    """Return the command for a server with this home folder.

    Only a `client` address on the server's own machine learns the path of the program.
    """
    if client is None or not is_loopback(client):
        return f"{PROGRAM} dashboard"
    words = [PROGRAM, "dashboard"]
    if shutil.which(PROGRAM) is None:
        words = [sys.executable, "-m", PROGRAM, "dashboard"]
    if home != table()["home"].default:
        words += ["--home", str(home)]
    return shlex.join(words)
