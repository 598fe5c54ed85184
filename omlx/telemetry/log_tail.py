"""The newest lines of the log file, also from before a restart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from omlx.telemetry.log import FILE, REQUESTS, human

TAIL_BYTES: Final = 512 << 10
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_OWN: Final = ("time", "level", "logger", "event", "exception", "frames")


@dataclass(frozen=True, slots=True)
class LogLine:
    """`at` in seconds since the epoch; `frames` are those of an exception, outermost first.

    `id` is unique among the lines that were read, and stays the same.
    """

    at: float
    level: str
    logger: str
    text: str
    frames: tuple[str, ...] = ()
    id: str = ""

    def matches(self, level: str, text: str) -> bool:
        """Whether it has `level` or a more severe one, and contains `text` in any case."""
        if LEVELS.index(self.level) < LEVELS.index(level):
            return False
        return text.lower() in f"{self.logger} {self.text}".lower()


def read_tail(home: Path, max_bytes: int = TAIL_BYTES) -> Sequence[LogLine]:
    """Return the lines in the last `max_bytes` of the log, the newest first.

    Lines that are not those of this log are left out. Raises OSError if it cannot be read.
    """
    path = home / "logs" / FILE
    content = _end_of(path, max_bytes)
    previous = path.with_name(f"{FILE}.1")
    if len(content) < max_bytes and previous.exists():
        content = _end_of(previous, max_bytes - len(content)) + content
    lines, equal = [], Counter[bytes]()
    for raw in content.splitlines():
        line = _line(raw)
        if line is not None:
            equal[raw] += 1
            lines.append(replace(line, id=f"{crc32(raw):08x}-{equal[raw]}"))
    return lines[::-1]


def _end_of(path: Path, max_bytes: int) -> bytes:
    """Return the end of a file, from the beginning of a line on."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - max_bytes))
        content = file.read(max_bytes)
    if size > max_bytes:
        content = content.partition(b"\n")[2]
    return content


def _line(content: bytes) -> LogLine | None:
    try:
        values = json.loads(content)
        at = datetime.fromisoformat(values["time"]).timestamp()
        level, logger = str(values["level"]), str(values["logger"])
        frames = tuple(map(str, values.get("frames", ())))
        text = _text(values)
    except (ValueError, KeyError, TypeError):
        return None
    if level not in LEVELS:
        return None
    return LogLine(at, level, logger, text, frames)


def _text(values: Mapping[str, Any]) -> str:
    if values["logger"] == REQUESTS:
        return human(dict(values))
    fields = [str(value) for name, value in values.items() if name not in _OWN]
    if "exception" in values:
        fields.append(str(values["exception"]))
    return " · ".join([str(values["event"]), *fields])
