"""Time from `omlx serve` without a model to the painted dashboard: `scripts/bench-dashboard`.

The browser is already open. Times run from the start of the server's process to the first paint of
the dashboard, login included; medians of several trials, on the machine as it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser

from tests.admin.browser import chromium

_PAINTED = """() => performance.getEntriesByName("first-contentful-paint").length > 0"""


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since the start of the process."""

    ready: float
    painted: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    arguments = parser.parse_args(argv)
    with chromium.opened() as browser:
        starts = []
        for _ in range(arguments.trials):
            with tempfile.TemporaryDirectory() as home:
                starts.append(start(browser, Path(home)))
            sys.stdout.write(
                f"ready {starts[-1].ready:.2f} s, dashboard {starts[-1].painted:.2f} s\n"
            )
    ready, painted = (
        median(start.ready for start in starts),
        median(start.painted for start in starts),
    )
    sys.stdout.write(f"median of {len(starts)}: ready {ready:.2f} s, dashboard {painted:.2f} s\n")
    return 0


def start(browser: Browser, home: Path) -> Start:
    context = browser.new_context()
    page = context.new_page()
    command = [sys.executable, "-m", "omlx", "serve", "--port", "0", "--home", str(home)]
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    begun = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
    ) as server:
        try:
            assert server.stdout is not None
            words = (line.split() for line in server.stdout)
            link = next(
                word for word in chain.from_iterable(words) if "/admin/login?token=" in word
            )
            ready = time.monotonic() - begun
            parts = urlsplit(link)
            origin, token = f"{parts.scheme}://{parts.netloc}", parse_qs(parts.query)["token"][0]
            answer = context.request.post(
                f"{origin}/admin/api/login", data={"token": token}, headers={"Origin": origin}
            )
            assert answer.ok
            page.goto(f"{origin}/admin")
            page.wait_for_function(_PAINTED)
            return Start(ready, time.monotonic() - begun)
        finally:
            context.close()
            server.terminate()


if __name__ == "__main__":
    raise SystemExit(main())
