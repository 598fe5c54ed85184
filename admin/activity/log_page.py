"""The page of the server's log: its newest lines, filtered by level and text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from fastapi import Request

from omlx.telemetry.log_tail import LEVELS, LogLine, read_tail

from ..addresses import LOG, PARTS
from ..pages import Page, Pages

MAX_LINES: Final = 300
SHOWN_LEVELS: Final = ("debug", "info", "warning", "error")
_MAX_TEXT: Final = 200


@dataclass(frozen=True, slots=True)
class LogView:
    """The newest lines that match. `missing`: there is no file that could be read."""

    lines: Sequence[LogLine]
    level: str
    text: str
    missing: bool = False
    levels: Sequence[str] = SHOWN_LEVELS


@dataclass(frozen=True, slots=True)
class LogPage:
    home: Path

    def register(self, pages: Pages) -> None:
        pages.route(LOG, self.show)
        pages.part(f"{PARTS}/activity/log", self.show_lines)

    async def show(self, request: Request) -> Page:
        return Page("activity/log_page.html", await self._view(request), "activity")

    async def show_lines(self, request: Request) -> Page:
        return Page("activity/log.html", await self._view(request))

    async def _view(self, request: Request) -> LogView:
        level, text = request.query_params.get("level"), request.query_params.get("text", "")
        if level not in LEVELS:
            level = SHOWN_LEVELS[0]
        return await asyncio.to_thread(log_view, self.home, level, text[:_MAX_TEXT])


def log_view(home: Path, level: str, text: str) -> LogView:
    """Read the log. Blocks on a file."""
    try:
        lines = read_tail(home)
    except OSError:
        return LogView((), level, text, missing=True)
    matching = (line for line in lines if line.matches(level, text))
    return LogView(tuple(islice(matching, MAX_LINES)), level, text)
