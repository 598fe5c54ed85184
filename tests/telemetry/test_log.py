"""Lines of the log: fields, owner, rotation; the newest ones are read back from its end."""

from __future__ import annotations

import io
import json
import logging
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.telemetry import log
from omlx.telemetry.log import read_tail

LINE: log.Fields = {
    "method": "POST",
    "path": "/v1/chat/completions",
    "status": 200,
    "ms": 812.5,
    "id": "chatcmpl-1",
    "model": "org/name",
    "reason": "stop",
    "prompt_n": 5,
    "cached_n": 0,
    "predicted_n": 120,
    "rate": 85.25,
    "accepted": 44,
    "proposed": 60,
    "speculation": "spec.on",
}


def set_up(home: Path, terminal: io.StringIO) -> None:
    """Log what this thread logs: servers of other tests may live in this process."""
    own = threading.get_ident()
    log.set_up(home, terminal)
    for handler in logging.getLogger("omlx").handlers:
        handler.addFilter(lambda record: record.thread == own)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[io.StringIO]:
    text = io.StringIO()
    set_up(tmp_path / "home", text)
    yield text
    log.tear_down()


def lines(home: Path) -> list[dict[str, object]]:
    text = (home / "logs" / "omlx.log").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_without_a_log_file_the_terminal_says_so_and_shows_everything(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    text = io.StringIO()
    log.set_up(tmp_path / "home", text)
    log.log_request(LINE)
    log.tear_down()
    first, second = text.getvalue().splitlines()
    assert first[9:] == f"warning: no log file · {tmp_path / 'home'} · Not a directory"
    assert "POST /v1/chat/completions 200" in second


def test_a_request_is_one_line_of_json_and_one_for_people(
    tmp_path: Path, terminal: io.StringIO
) -> None:
    log.log_request(LINE)
    (line,) = lines(tmp_path / "home")
    assert line["event"] == "request"
    assert line.items() >= LINE.items()
    assert terminal.getvalue()[9:] == (
        "POST /v1/chat/completions 200 · org/name · stop · 120 tokens at 85.25/s"
        " · 44/60 drafted tokens accepted · 812.5 ms · chatcmpl-1\n"
    )


def test_a_refusal_shows_its_code_and_a_plain_answer_why_there_was_no_draft(
    terminal: io.StringIO,
) -> None:
    request = {"method": "POST", "path": "/v1/x\x1b[2J\n", "status": 400, "ms": 1.0}
    log.log_request({**request, "error": "request.json"})
    log.log_request({**LINE, "proposed": 0, "accepted": 0, "speculation": "spec.off.requested"})
    first, second = terminal.getvalue().splitlines()
    assert first[9:] == "POST /v1/x\\x1b[2J\\n 400 · request.json · 1.0 ms"
    assert "spec.off.requested" in second


def test_only_the_owner_can_read(tmp_path: Path, terminal: io.StringIO) -> None:
    folder = tmp_path / "home" / "logs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "omlx.log").stat().st_mode) == 0o600


def test_rotated_files_are_few_and_private(tmp_path: Path) -> None:
    path = tmp_path / "omlx.log"
    handler = log.PrivateFile(path, maxBytes=200, backupCount=2, encoding="utf-8")
    for i in range(40):
        text = f"line {i} " + "x" * 40
        handler.emit(logging.LogRecord("omlx", logging.INFO, "", 0, text, None, None))
    handler.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["omlx.log", "omlx.log.1", "omlx.log.2"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_an_exception_is_logged_without_its_message(tmp_path: Path, terminal: io.StringIO) -> None:
    try:
        raise ValueError("the prompt said: swordfish")
    except ValueError:
        logging.getLogger("omlx.server").exception("a request failed")
    (line,) = lines(tmp_path / "home")
    assert line["exception"] == "ValueError"
    assert "test_log.py" in str(line["frames"])
    assert "swordfish" not in json.dumps(line) + terminal.getvalue()


def test_setting_up_twice_does_not_log_twice(tmp_path: Path, terminal: io.StringIO) -> None:
    set_up(tmp_path / "home", terminal)
    log.log_request(LINE)
    assert len(lines(tmp_path / "home")) == 1


def test_tearing_down_gives_the_logger_back(tmp_path: Path) -> None:
    log.set_up(tmp_path / "home")
    log.tear_down()
    assert logging.getLogger("omlx").handlers == []
    assert logging.getLogger("omlx").propagate


def test_what_a_full_disk_causes_is_one_line_on_the_terminal(
    tmp_path: Path, terminal: io.StringIO
) -> None:
    log.set_up(tmp_path, terminal)
    logger = logging.getLogger("omlx.x")
    for detail in ("database or disk is full", "other", "No space left on device"):
        logger.warning("costs not read", extra={"fields": {"detail": detail}})
    lines = [line.partition(" warning: ")[2] for line in terminal.getvalue().splitlines()]
    assert lines == [log.FULL, "costs not read · other"]
    assert (tmp_path / "logs" / log.FILE).read_text().count("costs not read") == 3


# Logs more than a file may hold, as on a full disk; standard error is such a file, too.
FULL = """
import os, resource, sys
from pathlib import Path
from omlx.cli import main
from omlx.telemetry import log

def work():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    log.set_up(Path(sys.argv[1]), sys.stderr)
    try:
        for number in range(200):
            log.log_request({"method": "POST", "path": f"/v1/{number}", "status": 200, "ms": 1.0})
        return 0
    finally:
        log.tear_down()

main.main = work
main.entry()
"""


def test_a_full_disk_is_said_once_and_leaves_the_exit_status(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w") as errors:
        ended = subprocess.run(
            [sys.executable, "-c", FULL, str(tmp_path)], stderr=errors, check=False, timeout=120
        )
    text = (tmp_path / "errors").read_text(errors="replace")
    assert ended.returncode == 0, text
    assert text.count("the log file has gaps") == 1
    assert "Logging error" not in text
    assert "Traceback" not in text
    written = (tmp_path / "logs" / "omlx.log").read_text(errors="replace").splitlines()
    assert json.loads(written[0])["event"] == "request"
    assert len(written) < 200


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    log.set_up(tmp_path, level=logging.DEBUG)
    yield tmp_path
    log.tear_down()


def texts(home: Path, **bounds: int) -> list[str]:
    return [line.text for line in read_tail(home, **bounds)]


def test_the_newest_line_comes_first_with_its_fields(home: Path) -> None:
    logger = logging.getLogger("omlx.pool")
    logger.info("loaded", extra={"fields": {"model": "org/name"}})
    try:
        raise ValueError("a prompt")
    except ValueError:
        logger.exception("a request failed")
    failed, loaded = read_tail(home)
    assert (loaded.level, loaded.logger, loaded.text) == ("info", "omlx.pool", "loaded · org/name")
    assert (failed.level, failed.text) == ("error", "a request failed · ValueError")
    assert "test_log.py" in failed.frames[-1]
    assert failed.at >= loaded.at


def test_lines_are_found_by_level_and_text(home: Path) -> None:
    logging.getLogger("omlx.a").warning("Full disk")
    (line,) = read_tail(home)
    assert line.matches("debug", "FULL")
    assert line.matches("warning", "omlx.a")
    assert not line.matches("error", "")
    assert not line.matches("debug", "empty")


def test_equal_lines_keep_their_ids_while_others_follow(home: Path) -> None:
    path = home / "logs" / "omlx.log"
    logging.getLogger("omlx").info("again")
    path.write_text(path.read_text() * 2)
    before = [line.id for line in read_tail(home)]
    assert len(set(before)) == 2
    logging.getLogger("omlx").info("newer")
    assert [line.id for line in read_tail(home)][1:] == before


def test_only_the_end_is_read_and_what_is_no_line_left_out(home: Path) -> None:
    logger, path = logging.getLogger("omlx"), home / "logs" / "omlx.log"
    for number in range(50):
        logger.info("line %d", number)
    with path.open("ab") as file:
        file.write(
            b'{"time": 1}\n[]\n\xff\n{"time": "2026-01-01T00:00:00", "level": "odd",'
            b' "logger": "x", "event": "y"}\n{"half'
        )
    assert texts(home)[0] == "line 49"
    few = texts(home, max_bytes=1000)
    assert 0 < len(few) < 12
    assert few == [f"line {49 - number}" for number in range(len(few))]


def test_it_goes_on_in_the_file_before_a_rotation(home: Path) -> None:
    path = home / "logs" / "omlx.log"
    logging.getLogger("omlx").info("before")
    path.with_name("omlx.log.1").write_bytes(path.read_bytes())
    path.write_bytes(b"")
    logging.getLogger("omlx").info("after")
    assert texts(home) == ["after", "before"]


def test_without_a_file_it_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"omlx\.log"):
        read_tail(tmp_path)
