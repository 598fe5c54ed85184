"""Where the running server is, for other commands: `server.json` in the home folder, while it runs."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from omlx.errors import ConfigError
from omlx.settings.file import locked, read, write

FILE: Final = "server.json"
_PATIENCE_S = 2


@contextmanager
def told(home: Path, address: str) -> Iterator[None]:
    """Say where the server is while the block runs. Where that cannot be said, it runs all the same."""
    path = home / FILE
    with suppress(ConfigError), locked(home):
        if not read(path, held=True).foreign:
            write(path, {"url": address, "pid": os.getpid()})
    try:
        yield
    finally:
        with suppress(ConfigError, OSError):
            if read(path).values.get("pid") == os.getpid():
                path.unlink()


def find(home: Path) -> str | None:
    """The address of the server that runs with this home folder, if it answers."""
    address = read(home / FILE).values.get("url")
    return address if isinstance(address, str) and answers(address) else None


def answers(address: str) -> bool:
    """Whether an omlx answers there."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return answer.status in (200, 503) and b'"status"' in answer.read(4096)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
