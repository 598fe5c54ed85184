"""Logging: JSON lines in `OMLX_HOME/logs/omlx.log`, the human form on the terminal.

Standard library only.

No text of prompts or output is ever logged: requests are logged as `Fields` of known names,
exceptions as their type and traceback only, since their message may quote the prompt.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias, cast
from zlib import crc32

from omlx.catalog import escaped

Fields: TypeAlias = dict[str, str | int | float]

FILE: Final = "omlx.log"
REQUESTS: Final = "omlx.request"

FULL: Final = "The disk is full: nothing is stored until there is room; requests are answered"
FULL_S: Final = 600.0
"""Seconds — interval of reminders."""

_FULL_SIGNS: Final = (os.strerror(errno.ENOSPC), "database or disk is full")
"""Names of a full disk in errors of the system and of SQLite."""

FILE_BYTES = 10 << 20
FILES_KEPT = 5

_requests = logging.getLogger(REQUESTS)


def set_up(home: Path, terminal: TextIO | None = None, level: int = logging.INFO) -> None:
    """Log to `home`/logs and, in the human form, to `terminal`. Replaces an earlier set-up.

    An unwritable `home` is reported in the first line on the terminal.
    """
    tear_down()
    logging.raiseExceptions = False  # else a failing handler writes tracebacks to the terminal
    logger = logging.getLogger("omlx")
    logger.setLevel(level)
    logger.propagate = False
    if terminal is not None:
        human = Terminal(terminal)
        human.setFormatter(Human())
        logger.addHandler(human)
    try:
        logger.addHandler(_file(home / "logs"))
    except OSError as error:
        fields = {"folder": str(home), "detail": error.strerror or str(error)}
        logger.warning("no log file", extra={"fields": fields})


def tear_down() -> None:
    logger = logging.getLogger("omlx")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        with suppress(OSError):  # a full disk has not taken the last lines
            handler.close()
    logger.propagate = True


def _file(folder: Path) -> logging.Handler:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    file = PrivateFile(folder / FILE, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
    file.setFormatter(JsonLines())
    return file


def log_request(fields: Fields, level: int = logging.INFO) -> None:
    _requests.log(level, "request", extra={"fields": fields})


class Terminal(logging.StreamHandler[TextIO]):
    """Standard error, possibly redirected to a full disk: lines with an OSError are dropped
    silently. Warnings that a full disk causes are one line in `FULL_S`; the log file has each.
    """

    _full_at = -FULL_S

    def emit(self, record: logging.LogRecord) -> None:
        if _is_of_full_disk(record):
            if record.created - self._full_at < FULL_S:
                return
            self._full_at = record.created
            fields = vars(record) | {"msg": FULL, "args": (), "exc_info": None, "fields": {}}
            record = logging.makeLogRecord(fields)
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def _is_of_full_disk(record: logging.LogRecord) -> bool:
    text = " ".join([record.getMessage(), *map(str, fields_of(record).values())])
    return record.levelno >= logging.WARNING and any(sign in text for sign in _FULL_SIGNS)


class PrivateFile(RotatingFileHandler):
    """A log file, and its rotated copies, readable by the owner only. The first disk error is
    logged through the other handlers; later ones are silent.
    """

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            fields = {"file": self.baseFilename, "detail": error.strerror or str(error)}
            logging.getLogger("omlx").warning("the log file has gaps", extra={"fields": fields})

    def _open(self) -> TextIO:  # type: ignore[override]
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(descriptor, 0o600)
        return cast(TextIO, open(descriptor, self.mode, encoding=self.encoding))


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= fields_of(record)
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            line["frames"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, ensure_ascii=False)


class Human(logging.Formatter):
    """One line per record, with control characters escaped for terminals.

    `14:03:21 POST /v1/chat/completions 200 · omlx-demo/target · 120 tokens at 85.2/s · …`
    """

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = fields_of(record)
        if record.name == REQUESTS:
            return escaped(f"{clock} {human(fields)}")
        message = f"{clock} {record.levelname.lower()}: {record.getMessage()}"
        text = " · ".join([message, *map(str, fields.values())])
        if record.exc_info and record.exc_info[0] is not None:
            text += f" ({record.exc_info[0].__name__}; the log file says where)"
        return escaped(text)


def human(fields: Fields) -> str:
    parts = [f"{fields['method']} {fields['path']} {fields['status']}"]
    parts += [str(fields[key]) for key in ("model", "error", "reason") if key in fields]
    if "predicted_n" in fields:
        parts.append(f"{fields['predicted_n']} tokens at {fields['rate']}/s")
        drafted = f"{fields['accepted']}/{fields['proposed']} drafted tokens accepted"
        parts.append(drafted if fields["proposed"] else str(fields["speculation"]))
    parts.append(f"{fields['ms']} ms")
    if "id" in fields:
        parts.append(str(fields["id"]))
    return " · ".join(parts)


def fields_of(record: logging.LogRecord) -> Fields:
    fields: Fields = record.__dict__.get("fields", {})
    return fields


TAIL_BYTES: Final = 512 << 10
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_OWN: Final = ("time", "level", "logger", "event", "exception", "frames")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line. `at`: seconds since the epoch; `frames` of an exception, outermost first.

    `id` is unique within a tail and the same at every reading: checksum and occurrence.
    """

    at: float
    level: str
    logger: str
    text: str
    frames: tuple[str, ...] = ()
    id: str = ""

    def matches(self, level: str, text: str) -> bool:
        """Whether the line's severity is at least `level` and `text` occurs in any case."""
        if LEVELS.index(self.level) < LEVELS.index(level):
            return False
        return text.lower() in f"{self.logger} {self.text}".lower()


def log_file(home: Path) -> Path:
    return home / "logs" / FILE


def read_tail(home: Path, max_bytes: int = TAIL_BYTES) -> Sequence[LogLine]:
    """Return the lines in the last `max_bytes` of the log, newest first.

    Skips lines in other formats. Raises OSError for an unreadable file.
    """
    path = log_file(home)
    content = _end_of(path, max_bytes)
    previous = path.with_name(f"{FILE}.1")
    # rotated recently: the previous file supplies the rest
    if len(content) < max_bytes and previous.exists():
        content = _end_of(previous, max_bytes - len(content)) + content
    lines, equal = [], Counter[bytes]()
    for raw in content.splitlines():
        line = parse_line(raw)
        if line is not None:
            equal[raw] += 1
            lines.append(replace(line, id=f"{crc32(raw):08x}-{equal[raw]}"))
    return lines[::-1]


def _end_of(path: Path, max_bytes: int) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - max_bytes))
        content = file.read(max_bytes)
    if size > max_bytes:
        content = content.partition(b"\n")[2]  # drop the partial first line
    return content


def parse_line(content: bytes) -> LogLine | None:
    """Return a line of the log file; None for a line in another format."""
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
