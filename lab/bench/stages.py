"""`python -m lab.bench stages`: a model in two stages here against the same in one process.

Two servers run, and take turns with the same requests: plain decoding, decoding with the draft
model, and a prompt of `--prompt` tokens that no cache knows. Also measured: the control path of a
step without a model, and what the processes of the group use while idle. Each figure is printed
beside its bar; those of speed are judged only where the machine and the model allow it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from lab.bench import inflate
from lab.bench.console import Json, add, environment, positive, table, write_json
from lab.bench.http.server import call, free_port, running
from lab.bench.series import Series
from lab.bench.workloads import prompts
from omlx.engine.stage.link import Kind, Link
from omlx.engine.step.plan import Forward, Plan, Window
from omlx.measure.sample import rotate
from omlx.models.pool.opening import open_model

IDLE_S: Final = 10.0
MIN_CORES: Final = 4
"""A stage computes on one core, and its ring waits on another."""

MIN_STEP_MS: Final = 10.0
"""Shorter steps show what a hop takes, not what it adds to a model that is worth splitting."""

LOCAL: Final = ("--hosts", "127.0.0.1,127.0.0.1", "--stage-timeout", "600")
"""On a busy machine a step may take longer than the default time-out."""

Cell = tuple[str, str]
"""A server (`alone`, `stages`) and what it does (`plain`, `draft`, `prefill`)."""


@dataclass(frozen=True, slots=True)
class Server:
    port: int
    pid: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--draft", "--json")
    parser.add_argument(
        "--trials", type=positive, default=5, metavar="N", help="default %(default)s"
    )
    parser.add_argument("--tokens", type=positive, default=200, metavar="N", help="of an answer")
    parser.add_argument("--prompt", type=positive, default=2048, metavar="N", help="tokens to read")
    inflate.add_arguments(parser, draft=False)


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the table; with `--inflate`, of a copy with longer steps."""
    if not args.inflate:
        return compare(args)
    with tempfile.TemporaryDirectory(prefix="omlx-inflated-") as folder:
        args.model = save_inflated(args.model, args.inflate, Path(folder) / args.model.name)
        return compare(args)


def save_inflated(source: Path, at_least: int, folder: Path) -> Path:
    """Copy a model to `folder` with identity layers up to `at_least` parameters; return it."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    model, config, _ = open_model(source, "auto", trusted=False)
    inflate.inflate(model, at_least)
    weights = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights))
    layers = len(cast(Any, model).layers)
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return folder


def compare(args: argparse.Namespace) -> int:
    load_before = os.getloadavg()
    paths = {name: control_path(plan, args.trials) for name, plan in PLANS.items()}
    with (
        serving(args.model, args.draft) as alone,
        serving(args.model, args.draft, *LOCAL) as staged,
    ):
        idle = idle_shares(staged.pid, IDLE_S)
        times = measure({"alone": alone, "stages": staged}, args)
    report: Json = {
        **environment(load_before),
        "settings": {"trials": args.trials, "tokens": args.tokens, "prompt": args.prompt},
        "control_us": {name: series.to_json() for name, series in paths.items()},
        "idle_share": idle,
        "ms": {" ".join(cell): series.to_json() for cell, series in times.items()},
    }
    write_json(args.json, report)
    sys.stdout.write(to_text(paths, idle, times))
    return 0


@contextmanager
def serving(model: Path, draft: Path | None, *flags: str) -> Iterator[Server]:
    """Serve a model without calibration, which would count as work while idle."""
    port = free_port()
    drafts = [] if draft is None else ["--draft-model", str(draft.resolve())]
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as home:
        command = ["omlx", "serve", str(model.resolve()), *drafts, *flags, "--home", home]
        with running([*command, "--no-calibrate", "--port", str(port)], port) as pid:
            yield Server(port, pid)


def measure(servers: dict[str, Server], args: argparse.Namespace) -> dict[Cell, Series]:
    """Return milliseconds by cell and trial; the first trial warms up and is not counted."""
    works = ["plain", "prefill"] if args.draft is None else ["plain", "draft", "prefill"]
    cells = [(server, work) for work in works for server in servers]
    times: dict[Cell, list[float]] = {cell: [] for cell in cells}
    for trial in range(args.trials + 1):
        for server, work in rotate(cells, trial):
            measured = _WORKS[work](servers[server].port, trial, args)
            if trial:
                times[server, work].append(measured)
    return {cell: Series(tuple(values)) for cell, values in times.items()}


def decode(speculation: str, port: int, trial: int, args: argparse.Namespace) -> float:
    """Return milliseconds a token."""
    body = {
        "messages": [{"role": "user", "content": prompts("edit")[0]}],
        "temperature": 0,
        "speculation": speculation,
        "max_tokens": args.tokens,
        "ignore_eos": True,
    }
    timings = call(port, "POST", "/v1/chat/completions", body)["timings"]
    return float(timings["predicted_ms"]) / (int(timings["predicted_n"]) - 1)


def prefill(port: int, trial: int, args: argparse.Namespace) -> float:
    """Return milliseconds of a prompt that begins unlike those before."""
    ids = [300 + trial, *(300 + number % 200 for number in range(args.prompt - 1))]
    body = {"prompt": ids, "max_tokens": 1, "speculation": "off"}
    return float(call(port, "POST", "/v1/completions", body)["timings"]["prompt_ms"])


_WORKS: Final[dict[str, Callable[[int, int, argparse.Namespace], float]]] = {
    "plain": partial(decode, "off"),
    "draft": partial(decode, "draft"),
    "prefill": prefill,
}


def to_text(paths: dict[str, Series], idle: dict[str, float], times: dict[Cell, Series]) -> str:
    """Return two tables: times, and figures beside their bars."""
    rows = [("ms", "median", "least", "most")]
    rows += [(f"{server}, {work}", *_cells(series, 2)) for (server, work), series in times.items()]
    cores, step = os.cpu_count() or 1, times["alone", "plain"].median
    judged = [("figure", "median", "least", "most", "gate", "goal", "")]
    for name, series in figures(paths, idle, times).items():
        bar = BARS[name.partition(",")[0]]
        judged.append((name, *_cells(series, bar.digits), *bar.judge(series.median, cores, step)))
    return "\n\n".join(table(part) for part in (rows, judged)) + "\n"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach (`gate`) and should (`goal`); None: it has no bar.

    A figure of `speed` says something only with two cores a stage, and of steps of `MIN_STEP_MS`.
    """

    gate: float | None = None
    goal: float | None = None
    speed: bool = False
    digits: int = 2

    def judge(self, value: float, cores: int, step_ms: float) -> tuple[str, str, str]:
        """Return gate, goal and a verdict."""
        if self.gate is None or self.goal is None:
            return "", "", ""
        most = self.goal < self.gate  # less is better
        sign = "≤" if most else "≥"
        bars = (f"{sign} {self.gate:g}", f"{sign} {self.goal:g}")
        if self.speed and cores < MIN_CORES:
            return *bars, f"not judged: {cores} cores, {MIN_CORES} are needed"
        if self.speed and step_ms < MIN_STEP_MS:
            return *bars, f"not judged: steps of {step_ms:.1f} ms, {MIN_STEP_MS:g} are needed"
        for name, bound in (("goal", self.goal), ("gate", self.gate)):
            if value == bound or (value < bound) == most:
                return *bars, f"{name} met"
        return *bars, "missed"


BARS: Final = {
    "control path": Bar(100, 40, digits=1),
    "idle": Bar(1, 0.2),
    "plain step": Bar(1.15, 1.05, speed=True),
    "drafting's gain": Bar(),
    "gain in stages / alone": Bar(0.9, 1.0, speed=True),
    "prefill": Bar(1.4, 1.7, speed=True),
}
"""By the beginning of a figure's name."""


def figures(
    paths: dict[str, Series], idle: dict[str, float], times: dict[Cell, Series]
) -> dict[str, Series]:
    """Return all figures that are judged, by name and unit."""
    found = {f"control path, {name}, µs a step": series for name, series in paths.items()}
    shares = {name: Series((100 * share,)) for name, share in idle.items()}
    found |= {f"idle, {name}, % of a core": share for name, share in shares.items()}
    return found | comparisons(times)


def comparisons(times: dict[Cell, Series]) -> dict[str, Series]:
    """Return ratios within trials; `drafting's gain` is plain over drafted time."""
    found = {
        "plain step, stages / alone": times["stages", "plain"].over(times["alone", "plain"]),
        "prefill, alone / stages": times["alone", "prefill"].over(times["stages", "prefill"]),
    }
    if ("alone", "draft") in times:
        gains = {
            name: times[name, "plain"].over(times[name, "draft"]) for name in ("alone", "stages")
        }
        found |= {f"drafting's gain, {name}": gain for name, gain in gains.items()}
        found["gain in stages / alone"] = gains["stages"].over(gains["alone"])
    return found


def _cells(series: Series, digits: int) -> tuple[str, str, str]:
    median, least, most = series.median, series.least, series.most
    return f"{median:.{digits}f}", f"{least:.{digits}f}", f"{most:.{digits}f}"


STEPS: Final = 200
"""Steps of each trial."""

_PLAIN: Final = Plan((), (Forward((Window(7, 900, "last"),)),))
_VERIFY: Final = Plan((), (Forward((Window(7, 900, (5,), 4, (11, 12, 13, 14), "draft"),)),))
PLANS: Final = {"plain": _PLAIN, "verify 4 drafts": _VERIFY}


def control_path(plan: Plan, trials: int) -> Series:
    """Return microseconds a step, by trial, over a TCP connection on loopback.

    A step ends when the follower, a thread here, has parsed the plan and said so: half of an empty
    round trip, measured alike, is subtracted for the way back.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = Link(socket.create_connection(listener.getsockname()))
        far = Link(listener.accept()[0])
    follower = threading.Thread(target=_follow, args=(far,))
    follower.start()
    try:
        figures = []
        for _ in range(trials):
            steps, trips = [], []
            for _ in range(STEPS):
                steps.append(_seconds(near, plan))
                trips.append(_seconds(near, None))
            figures.append(1e6 * (median(steps) - median(trips) / 2))
    finally:
        near.close()
        follower.join()
        far.close()
    return Series(tuple(figures))


def _seconds(link: Link, plan: Plan | None) -> float:
    start = perf_counter()
    if plan is None:
        link.send(Kind.BEAT)
    else:
        link.send(Kind.PLAN, plan.to_bytes())
    link.receive()
    return perf_counter() - start


def _follow(link: Link) -> None:
    while (frame := link.receive()) is not None:
        if frame.kind is Kind.PLAN:
            Plan.from_bytes(frame.payload)
        link.send(Kind.BEAT)


def idle_shares(pid: int, seconds: float) -> dict[str, float]:
    """Return, by command (`serve`, `stage`), the share of a core that the children of `pid` use."""
    before = _children(pid)
    time.sleep(seconds)  # what is measured is that nothing happens
    after = _children(pid)
    return {
        command: (used - before[command]) / seconds
        for command, used in after.items()
        if command in before
    }


def _children(pid: int) -> dict[str, float]:
    """CPU seconds of each child, by its command of omlx."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,time=,args="], capture_output=True, text=True, check=True
    )
    used = {}
    for line in listed.stdout.splitlines():
        child, parent, spent, *arguments = line.split()
        if parent == str(pid):
            command = "stage" if "stage" in arguments else "serve"
            used[command] = _exact_seconds(int(child), spent)
    return used


def _exact_seconds(pid: int, spent: str) -> float:
    """CPU seconds: by /proc, whose ticks are finer than those of Linux's `ps`, or by `spent`."""
    status = Path(f"/proc/{pid}/stat")
    if status.exists():
        fields = status.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    seconds = 0.0
    for part in spent.replace("-", ":").split(":"):  # [[days-]hours:]minutes:seconds
        seconds = seconds * 60 + float(part)
    return seconds
