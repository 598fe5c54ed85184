"""How long it takes from `omlx serve`, with no model, to a dashboard that is painted: `scripts/bench-dashboard`.

The browser is open already, as somebody's is. The clock starts before the server's process does, and stops when the
first page of the dashboard has been painted, logging in included. Times are medians; the machine's load counts.
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
from pathlib import Path
from statistics import median
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser

from tests.admin.browser import chromium

_PAINTED = """() => performance.getEntriesByName("first-contentful-paint").length > 0"""


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds since the process was started."""

    ready: float
    painted: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    asked = parser.parse_args(arguments)
    path = chromium.find()
    if path is None:
        sys.stderr.write("There is no Chromium or Chrome here.\n")
        return 1
    with chromium.launched(path) as browser:
        starts = []
        for _ in range(asked.trials):
            with tempfile.TemporaryDirectory() as home:
                starts.append(start(browser, Path(home)))
            sys.stdout.write(
                f"ready {starts[-1].ready:.2f} s, dashboard {starts[-1].painted:.2f} s\n"
            )
    ready, painted = median(each.ready for each in starts), median(each.painted for each in starts)
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
            link = next(
                word
                for line in server.stdout
                for word in line.split()
                if "/admin/login?token=" in word
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
