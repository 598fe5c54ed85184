"""One run: serve two models under a limit for one and a half, load the server, sample figures."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from tqdm import tqdm

from lab.soak.load import PATIENCE_S, Load
from lab.soak.models import DRAFT_MODEL, MODELS, write_models
from lab.soak.result import Result, gauges, sample
from tests.cli.serving import serving
from tests.processes import environment

SOFT_LIMIT: Final = 0.85
"""Share of the memory limit up to which models are loaded."""

DISK_PER_MINUTE: Final = 4 << 20
"""Bytes of the disk tier by the length of the run, so that it is full in the first half."""

DISK_LEAST: Final = 40 << 20
ANSWER_DISK: Final = "4MB"


@dataclass(frozen=True)
class Plan:
    """`widen` multiplies the hidden units of the models: with 8 they have 70 to 90 MB each."""

    seconds: float
    streams: int = 8
    widen: int = 8
    salt: int = 0

    @property
    def interval_s(self) -> float:
        return min(10.0, max(0.2, self.seconds / 240))

    @property
    def warm_up_s(self) -> float:
        """Seconds of load without a limit, in which grammars, templates and pools fill."""
        return min(180.0, self.seconds / 6)

    @property
    def disk_bytes(self) -> int:
        return max(DISK_LEAST, int(self.seconds / 60 * DISK_PER_MINUTE))


def soak(plan: Plan, folder: Path, *, show: bool = False) -> Result:
    """Run the plan in an empty folder. `show` draws a progress bar."""
    write_models(folder / "models", plan.widen)
    home = folder / "home"
    home.mkdir()
    arguments = ["--model-dir", str(folder / "models"), "--draft-model", DRAFT_MODEL]
    arguments += ["--prefix-disk", str(plan.disk_bytes), "--answer-disk", ANSWER_DISK]
    result = Result(plan.streams)
    try:
        with (
            serving(home, next(iter(MODELS)), *arguments) as server,
            httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http,
        ):
            load = Load(server.url, plan.streams, plan.salt, result.counts)
            with load.running():
                time.sleep(plan.warm_up_s)
            _limit_memory(http, home)
            with load.running():
                _watch(plan, http, server.process.pid, home / ".omlx", result, show)
            _wait_until_idle(http)
    except AssertionError as error:
        if not result.samples:
            raise
        result.logged.append(str(error))
    events = _events(home / ".omlx" / "logs")
    result.loads = sum(event["event"] == "loaded" for event in events)
    result.logged += [json.dumps(event) for event in events if event["level"] == "error"]
    return result


def _limit_memory(http: httpx.Client, home: Path) -> None:
    """Set the limit to what the warm process uses without models, and one and a half models."""
    largest = 0
    for model in MODELS:
        http.post(f"/v1/models/{model}/load").raise_for_status()
        largest = max(largest, http.get(f"/v1/models/{model}").json()["weights_bytes"])
    for model in MODELS:
        http.post(f"/v1/models/{model}/unload").raise_for_status()
    used = gauges(http, "omlx_memory_bytes", "what")["used"]
    limit = int((used + 1.5 * largest) / SOFT_LIMIT)
    command = [sys.executable, "-m", "omlx", "config", "set", "memory_limit", str(limit)]
    subprocess.run(command, env=environment(home), check=True, capture_output=True)
    until = time.monotonic() + PATIENCE_S
    while gauges(http, "omlx_memory_bytes", "what")["limit"] != limit:
        assert time.monotonic() < until, "the server does not apply the limit"
        time.sleep(0.2)  # the server looks at its settings every few seconds


def _watch(
    plan: Plan, http: httpx.Client, pid: int, home: Path, result: Result, show: bool
) -> None:
    """Sample the server for the length of the run."""
    began, shown = time.monotonic(), 0
    with tqdm(total=round(plan.seconds), unit="s", disable=not show) as bar:
        while (passed := time.monotonic() - began) < plan.seconds:
            result.samples.append(sample(http, pid, home))
            result.minutes.append(passed / 60)
            bar.n = round(passed)
            for error in result.counts.errors[shown:]:
                bar.write(error[:2000], file=sys.stderr)
                shown += 1
            bar.set_postfix_str(
                f"{sum(result.counts.kinds.values())} requests, "
                f"{len(result.counts.errors)} errors, {result.counts.retried} retries"
            )
            time.sleep(plan.interval_s)  # between two samples


def _wait_until_idle(http: httpx.Client) -> None:
    """Wait until no request is left. Raises AssertionError if one stays."""
    until = time.monotonic() + PATIENCE_S
    while any(gauges(http, "omlx_rows", "state").values()):
        assert time.monotonic() < until, "a request was left behind"
        time.sleep(0.2)  # a cancelled request ends within steps


def _events(logs: Path) -> list[dict[str, Any]]:
    """Lines of the log, of rotated files too."""
    lines: list[str] = []
    for file in logs.iterdir():
        lines += file.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
