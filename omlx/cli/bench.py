"""`omlx bench [MODEL]`: the benchmark of the dashboard, on the terminal.

Uses the running server, or starts one for the command. Ctrl-C stops the benchmark and shows what
was measured. Exit status: 0 measured, 1 failed or without figures, 2 refused, 130 stopped.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote

from tqdm import tqdm

from omlx.admin.benchmark_view import MEASURES, rate_of
from omlx.admin.benchmark_view import table as benchmark_table
from omlx.admin.web.addresses import API
from omlx.admin.web.formats import THIN, duration, prompt_length
from omlx.catalog import escaped, sentence
from omlx.cli.arguments import configured, model_id
from omlx.cli.client import Client, interruptible, server_for
from omlx.cli.output import BOLD, columns, styled
from omlx.errors import ConfigError
from omlx.settings.schema import table

Report = Mapping[str, Any]

POLL_S: Final = 1.0
_STOPPED: Final = 130


def run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=sentence("cli.bench.model", {}))
    parser.add_argument("--longest", metavar="N", type=int, help=sentence("cli.bench.longest", {}))
    parser.add_argument("--json", metavar="FILE", type=Path, help=sentence("cli.bench.json", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    settings = configured(arguments).current.resolve().settings
    file: Path | None = arguments.json
    # Refused before minutes of measuring, not after.
    if file is not None and (file.is_dir() or not file.resolve().parent.is_dir()):
        raise ConfigError("cli.session.no_target", file=str(file))
    with interruptible(), server_for(settings.home, arguments.model) as address:
        client = Client(address, settings.api_key)
        name = arguments.model and model_id(arguments.model)
        model = client.model(name or client.default_model(settings.default_model))["id"]
        with client.session(settings.home) as admin:
            report = _measure(admin, f"{API}/models/{quote(model)}/benchmark", arguments.longest)
    sys.stdout.write(_text(report).replace(THIN, " "))
    if file is not None:
        try:
            file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError("config.unwritable", file=str(file), detail=str(error)) from error
    if report["reason"] is not None:
        sys.stderr.write(f"omlx: {escaped(report['reason']['message'])}\n")
    if report["state"] != "done":
        return _STOPPED if report["state"] == "cancelled" else 1
    if not any(rate_of(row, name) for row in report["rows"] for name in MEASURES):
        sys.stderr.write(f"omlx: {sentence('cli.bench.no_figures', {})}\n")
        return 1
    return 0


def _measure(client: Client, path: str, longest: int | None) -> Report:
    """Begin a benchmark; return the report once over, or stopped by Ctrl-C."""
    begun = client.post(path, {} if longest is None else {"longest": longest})
    try:
        return _follow(client, path, begun)
    except BaseException as error:  # raised again: nothing else would stop it
        stopped = None
        with suppress(ConfigError):
            stopped = client.post(f"{path}/stop", {"id": begun["id"]})
        if not isinstance(error, KeyboardInterrupt):
            raise
        return stopped or _over(client.get(path), begun)


def _follow(client: Client, path: str, report: Report) -> Report:
    tqdm.monitor_interval = 0  # no thread of its own
    bar: tqdm[NoReturn]
    form = "{percentage:3.0f}% |{bar:20}| {desc}"
    with tqdm(total=1.0, bar_format=form, disable=None, leave=False) as bar:
        while True:
            record = client.get(path)
            running = record["running"]
            if running is None or running["id"] != report["id"]:
                return _over(record, report)
            report = running
            _show(bar, running)
            time.sleep(POLL_S)  # another process has no event to wait for


def _over(record: Report, report: Report) -> Report:
    """Return the last report; `report` alone knows a run stopped before the next began."""
    over: list[Report | None] = [record["ended"], *record["runs"]]
    same = (each for each in over if each and each["id"] == report["id"])
    return next(same, {**report, "state": "cancelled"})


def _show(bar: tqdm[NoReturn], report: Report) -> None:
    state = "paused" if report["state"] == "paused" else "running"
    parts = [sentence(f"ui.bench.{state}", {"model": report["model"]})]
    now = report["now"]
    if now is not None:
        point = {"tokens": prompt_length(now["tokens"]), "streams": now["streams"]}
        parts.append(sentence(f"ui.bench.now.{now['mode']}", point))
    if report["left_s"] is not None:
        parts.append(sentence("ui.try.left", {"time": duration(report["left_s"])}))
    bar.set_description_str(escaped(" · ".join(parts).replace(THIN, " ")), refresh=False)
    bar.n = report["share"]
    bar.refresh()


def _text(report: Report) -> str:
    """Return heading, drafters, table, and points that were left out, as on the page."""
    heads, *rows = benchmark_table(report)
    drafters = ", ".join(report["drafters"])
    drafted = sentence("ui.bench.drafters", {"drafters": drafters})
    if not drafters:
        why = report["no_drafts"]["message"] if report["no_drafts"] else ""
        drafted = f"{sentence('ui.bench.no_drafters', {})} {why}".rstrip()
    title = sentence("ui.bench.result", {"model": report["model"]})
    lines = [styled(escaped(title), BOLD)]
    if rows:
        lines += [escaped(drafted), "", columns(rows, heads).rstrip()]
    if report["left_out"]:
        lines += ["", sentence("ui.bench.left_out", {})]
    for left in report["left_out"]:
        point = {"tokens": prompt_length(left["tokens"]), "streams": left["streams"]}
        lines.append(f"  {sentence('ui.bench.point', point)}: {left['reason']['message']}")
    codes = {row["verdict"]["code"] for row in report["rows"] if row["verdict"]}
    for code in ("busy", "noisy"):
        if f"benchmark.verdict.{code}" in codes:
            lines.append(sentence(f"ui.measure.{code}.help", {}))
    if report["state"] == "cancelled":
        lines.append(sentence("ui.bench.stopped", {}))
    return "\n".join(lines) + "\n"
