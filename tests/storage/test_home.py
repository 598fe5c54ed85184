"""The records of a home: what earlier versions kept in files is taken over once, and no more."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from omlx.measure.results import Conditions, ResultStore, StoredResult
from omlx.models.pool.cost_store import CostStore
from omlx.receipts.kept import AnswerStore
from omlx.storage import FILE, use
from omlx.telemetry.usage import Usage, UsageHistory
from tests.models.test_cost_store import KEY, measured
from tests.receipts.test_store import answer
from tests.storage import homes

RUN = StoredResult({"rows": []}, 5.0, Conditions("machine", {"omlx": "1"}))
_WRITE = """
import sys
from pathlib import Path
from omlx.storage import use
for number in range(100_000):
    row = (f"a-{number}", 1.0, "x" * 5000)
    use(Path(sys.argv[1]), lambda db: db.execute("insert into receipts values (?, ?, ?)", row))
    print(number, flush=True)
"""

_FILL = """
import resource, sys
from pathlib import Path
from omlx.telemetry.usage import FAILURE, UsageHistory
history = UsageHistory(Path(sys.argv[1]))
history.add("m", "", FAILURE)
history.flush()
most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))  # for each file
for number in range(2000):
    history.add(f"model {number}", "", FAILURE)
history.flush()
before = len(history._pending)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
print(before, len(history.sums(1)), len(history._pending))
"""

DAY_USAGE = Usage(requests=3, prompt=200, draft_saved_s=0.5)


def write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The files of an earlier version, and two that are none of them."""
    write(
        tmp_path / "costs" / f"{KEY.name}.json",
        {"format": "omlx-costs/1", "key": asdict(KEY), "costs": measured().to_json()},
    )
    ours = {"format": "omlx-config/1", "model": "org/a"}
    write(tmp_path / "trials" / "org--a-1.json", {**ours, "report": asdict(RUN), "drafts": {}})
    write(tmp_path / "benchmarks" / "org--a-1.json", {**ours, "runs": [asdict(RUN)]})
    write(tmp_path / "benchmarks" / "mine.json", {"of": "another program"})
    store, kept = AnswerStore(tmp_path / "other"), answer("a-0")
    store.keep(kept, kept.receipt())
    write(tmp_path / "receipts" / "a-0.json", homes.receipt(tmp_path / "other", "a-0"))
    (tmp_path / "receipts" / "b-0.json").write_text("damaged")
    with closing(sqlite3.connect(tmp_path / "statistics.sqlite")) as db:
        names = ", ".join(asdict(DAY_USAGE))
        db.execute(f"create table usage (day, model, key, {names})")
        row = ("2026-03-14", "m", "", *asdict(DAY_USAGE).values())
        db.execute("insert into usage values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.commit()
    return tmp_path


def files(home: Path) -> list[str]:
    found = [path for path in home.rglob("*") if path.is_file() and path.parent.name != "other"]
    return sorted(str(path.relative_to(home)) for path in found)


def check(home: Path) -> None:
    """All of it is on record."""
    assert CostStore(home).load(KEY).to_json() == measured().to_json()
    assert ResultStore(home).trials("org/a").report == RUN
    assert ResultStore(home).runs("org/a") == [RUN]
    assert AnswerStore(home).get("a-0")[0] == answer("a-0")
    assert AnswerStore(home).ids("b-0") == []
    usage = UsageHistory(home, lambda: 1773500000.0).sums(10)  # 2026-03-14
    assert usage == {("2026-03-14", "m", ""): DAY_USAGE}


def test_files_of_an_earlier_version_are_taken_over_and_deleted(home: Path) -> None:
    at = (home / "receipts" / "a-0.json").stat().st_mtime
    check(home)
    assert files(home) == ["benchmarks/mine.json", FILE, "receipts/b-0.json"]
    assert not (home / "costs").exists()
    assert homes.rows(home, "select at from receipts") == [(at,)]  # so they expire when they did
    check(home)


def test_a_file_that_comes_later_is_left_alone(home: Path) -> None:
    check(home)
    write(home / "receipts" / "c-0.json", homes.receipt(home, "a-0"))
    check(home)
    assert AnswerStore(home).ids("c-0") == []
    assert (home / "receipts" / "c-0.json").exists()


def test_a_process_that_dies_while_files_are_deleted_leaves_the_rest_to_the_next(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(path: Path, *, missing_ok: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", die)
    with pytest.raises(KeyboardInterrupt):
        use(home, lambda db: None)
    monkeypatch.undo()
    assert len(files(home)) == 8
    check(home)
    assert len(files(home)) == 3


def test_nothing_is_created_to_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert ResultStore(home).runs("org/a") == []
    assert AnswerStore(home).ids("a-0") == []
    assert os.listdir(tmp_path) == []


def test_what_was_stored_is_there_after_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITE, str(tmp_path)]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            written = [int(writer.stdout.readline()) for _ in range(10)]
            writer.kill()
        stored = {id for (id,) in homes.rows(tmp_path, "select id from receipts")}
        assert stored >= {f"a-{number}" for number in written}
        assert homes.rows(tmp_path, "pragma integrity_check") == [("ok",)]
        homes.rows(tmp_path, "delete from receipts")


def test_what_a_full_disk_does_not_take_is_written_later(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FILL, str(tmp_path)]
    filled = subprocess.run(command, capture_output=True, text=True, check=True)
    assert filled.stdout.split() == ["2000", "2001", "0"]
    assert filled.stderr.count("statistics not stored") == 1
