"""`omlx bench`: the report of the server's benchmark, written and stopped; what is refused."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tqdm import tqdm

from omlx.admin.credentials import Credentials
from omlx.cli import bench
from omlx.cli.client import Client
from omlx.cli.main import main
from omlx.cli.serve.address import find_server, published
from omlx.measure import benchmark, sample
from omlx.measure.results import ResultStore
from tests.admin.running import API, Administered, administered
from tests.cli.inside import Capture
from tests.processes import environment
from tests.server.running import DRAFT, PATIENCE_S, TARGET

HERE = f"{API}/models/{TARGET}/benchmark"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    home = tmp_path_factory.mktemp("home")
    with administered(home, draft_model=DRAFT) as running, published(home, running.running.url):
        yield running


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "ROUNDS", 1)
    monkeypatch.setattr(benchmark, "ANSWER_TOKENS", 24)
    monkeypatch.setattr(bench, "POLL_S", 0.05)
    monkeypatch.setattr(sample.Sample, "busy", False)


def test_the_report_is_printed_and_written(
    server: Administered, tmp_path: Path, capsys: Capture
) -> None:
    file, before = tmp_path / "report.json", set(Credentials(server.home).sessions())
    words = ["bench", "target", "--longest", "1024", "--json", str(file)]
    assert main([*words, "--home", str(server.home)]) == 0
    report = json.loads(file.read_text(encoding="utf-8"))
    shown = capsys.readouterr()
    title, drafted, _, head, *rows = shown.out.splitlines()
    assert title == f"Results of {TARGET}"
    assert drafted.startswith("Drafted by: ")
    assert head.split("  ")[0] == "Prompt"
    assert head.endswith("Effect of drafts")
    assert [row.split()[:2] for row in rows[:2]] == [["1024", "1"], ["1024", "4"]]
    assert "measured once" in rows[0]
    assert shown.err == ""
    assert set(Credentials(server.home).sessions()) == before
    with server.browser() as client:
        assert client.get(HERE).json()["runs"][0] == report


def test_an_interrupt_stops_it_and_shows_what_was_measured(
    server: Administered, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupt(bar: Any, report: Any) -> None:
        if any(row["plain"] for row in report["rows"]):
            raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_show", interrupt)
    assert main(["bench", "--longest", "2048", "--home", str(server.home)]) == 130
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "The benchmark was stopped. Nothing was stored."
    assert any(row.split()[:2] == ["1024", "1"] for row in shown)
    with server.browser() as client:
        record = client.get(HERE).json()
        assert (record["running"], record["ended"]["state"]) == (None, "cancelled")


def test_what_cannot_be_measured_is_refused(
    server: Administered, tmp_path: Path, capsys: Capture
) -> None:
    home = ["--home", str(server.home)]
    for words, said in (
        (["targett"], "Did you mean: omlx-demo/target?"),
        (["target", "--longest", "5"], "longest"),
        (["target", "--json", str(tmp_path / "none/report.json")], "is no path for a file"),
    ):
        assert main(["bench", *words, *home]) == 2
        assert said in capsys.readouterr().err
    with server.browser() as client:
        assert client.post(HERE, json={"longest": 131072}).status_code == 202
        assert main(["bench", "target", *home]) == 2
        assert f"A benchmark of {TARGET} is running" in capsys.readouterr().err
        assert client.post(f"{HERE}/stop").status_code == 200


def test_a_failure_is_named(
    server: Administered, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    async def fail(self: Any, runner: Any) -> None:
        raise RuntimeError("a test")

    monkeypatch.setattr(benchmark.Benchmark, "measure", fail)
    assert main(["bench", "target", "--home", str(server.home)]) == 1
    assert capsys.readouterr().err.startswith("omlx: ")


def test_a_benchmark_without_figures_has_not_succeeded(
    server: Administered, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Other programs keep the machine busy: no row has a figure."""
    monkeypatch.setattr(sample.Sample, "busy", True)
    assert main(["bench", "target", "--longest", "1024", "--home", str(server.home)]) == 1
    shown = capsys.readouterr()
    assert "other programs kept the machine busy" in shown.out
    assert shown.err == "omlx: There are no figures. The lines above say why.\n"


def test_the_bar_says_what_runs_and_the_time_left() -> None:
    now = {"tokens": 4096, "streams": 4, "mode": "drafted"}
    report = {"model": "m", "state": "running", "now": now, "left_s": 130.0, "share": 0.5}
    with tqdm(total=1.0, bar_format="{percentage:.0f} {desc}", file=io.StringIO()) as bar:
        bench._show(bar, report)
        assert str(bar) == "50 Measuring m · 4k tokens, streams: 4, drafted · about 2 min left"
        bench._show(bar, {**report, "state": "paused", "now": None, "left_s": None})
        assert str(bar) == "50 Paused for requests of clients: m"


def test_a_signal_ends_the_server_of_the_command_too(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-m", "omlx", "bench", DRAFT, "--home", str(home)]
    process = subprocess.Popen(
        command,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while (address := find_server(home)) is None:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)  # another process has no event to wait for
        with httpx.Client(base_url=address) as http:
            assert http.get("/health").status_code == 200
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 130
            with pytest.raises(httpx.TransportError):
                http.get("/health")
    finally:
        process.kill()
        process.communicate()
    assert Credentials(home).sessions() == {}


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_command_logs_in_leaves_no_session(
    end: signal.Signals, server: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, request = Credentials(server.home).sessions(), Client._request

    @contextmanager
    def interrupted(client: Client, method: str, path: str, *rest: Any) -> Iterator[Any]:
        with request(client, method, path, *rest) as response:
            if path == f"{API}/login":
                signal.raise_signal(end)
            yield response

    monkeypatch.setattr(Client, "_request", interrupted)
    assert main(["bench", "target", "--home", str(server.home)]) == 130
    assert Credentials(server.home).sessions() == before


@pytest.mark.slow
def test_the_newest_report_is_shown_of_a_benchmark_that_was_not_stored(
    server: Administered, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(ResultStore, "add_run", lambda *_: None)
    words = ["bench", "target", "--longest", "1024", "--home", str(server.home)]
    assert main(words) == 0
    assert any(row.split()[:1] == ["1024"] for row in capsys.readouterr().out.splitlines())


def test_only_the_benchmark_of_that_id_is_stopped() -> None:
    mine, other = {"id": "a", "state": "running"}, {"id": "b", "state": "running"}
    assert bench._over({"running": other, "ended": None, "runs": []}, mine) == {
        "id": "a",
        "state": "cancelled",
    }
    stored = {"id": "a", "state": "done"}
    assert bench._over({"running": other, "ended": None, "runs": [stored]}, mine) == stored
