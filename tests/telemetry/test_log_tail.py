from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.telemetry import log
from omlx.telemetry.log import read_tail


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
    assert "test_log_tail.py" in failed.frames[-1]
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
