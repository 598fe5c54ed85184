"""`omlx verify RECEIPT|ID…`: decode kept answers again, plainly and alone, and compare.

Exit status: 0 if all are the same, near-ties aside; 1 otherwise. `--server URL` checks any server
with OpenAI's chat API from outside instead: 0 if no check fails, 1 if a check fails, 2 if the
server does not answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from tqdm import tqdm

from omlx import __version__
from omlx.catalog import sentence
from omlx.cli.arguments import configured, find_models
from omlx.cli.output import columns
from omlx.conformance.checks import CHECKS, judge
from omlx.conformance.client import Client, Outcome, Result
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, NotFound
from omlx.models.catalog.catalog import Catalog
from omlx.models.pool.pool import build_pool
from omlx.receipts.kept import AnswerStore
from omlx.receipts.verifier import Verdict, Verifier
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group
from omlx.terminal_text import escaped


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "receipts", metavar="RECEIPT|ID", nargs="*", help=sentence("cli.verify.receipts", {})
    )
    parser.add_argument("--json", action="store_true", help=sentence("cli.verify.json", {}))
    add_server_arguments(parser)
    add_flags(parser, [Group.MODELS])


def run(arguments: Namespace) -> int:
    of_server = arguments.model or arguments.api_key or arguments.markdown
    if bool(arguments.receipts) == bool(arguments.server) or (of_server and arguments.receipts):
        raise BadRequest("cli.verify.usage")
    if arguments.server:
        return run_server(arguments)
    arguments.no_draft = True  # only the target's tokens count
    configuration = configured(arguments)
    store = AnswerStore(configuration.current.resolve().settings.home)
    claims = [claim for name in arguments.receipts for claim in _claims(name, store)]
    verdicts = asyncio.run(_verify(claims, store, configuration))
    if arguments.json:
        json.dump([verdict.record() for verdict in verdicts], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write("".join(verdict.lines() for verdict in verdicts))
    return 0 if all(verdict.same for verdict in verdicts) else 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A kept choice by id, with the fields of a client's receipt, if given."""

    id: str
    fields: Mapping[str, Any] = field(default_factory=dict)


async def _verify(
    claims: Sequence[Claim], store: AnswerStore, configuration: LiveConfiguration
) -> list[Verdict]:
    engine = EngineThread()
    engine.start()
    try:
        registry = await asyncio.to_thread(find_models([], configuration.current).scan)
        pool = build_pool(engine, Catalog(registry, configuration))
        verifier = Verifier(engine, pool, store)
        return [await verifier.verify(claim.id, claim.fields) for claim in claims]
    finally:
        engine.stop()


def _claims(name: str, store: AnswerStore) -> Iterator[Claim]:
    """Yield the choices of an answer, named by id or by a receipt's file.

    Raises NotFound for an unknown id, BadRequest for a file without a receipt.
    """
    path = Path(name)
    if path.suffix == ".json" or path.is_file():
        yield from _read(path)
        return
    ids = store.ids(name)
    if not ids:
        raise NotFound("receipt.not_found", id=name)
    for id in ids:
        yield Claim(id)


def _read(path: Path) -> Iterator[Claim]:
    """Yield the choices of a receipt, which may be part of a response."""
    try:
        record = json.loads(path.read_bytes())
        receipt = record.get("receipt", record)
        choices = receipt.pop("choices")
        for choice in choices:
            yield Claim(str(choice["id"]), {**receipt, **choice})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadRequest("receipt.unreadable", file=str(path), detail=str(error)) from error


def add_server_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--server", metavar="URL", help=sentence("cli.verify.server", {}))
    group.add_argument("--model", metavar="MODEL", help=sentence("cli.verify.model", {}))
    group.add_argument("--api-key", metavar="KEY", help=sentence("cli.verify.key", {}))
    group.add_argument("--markdown", action="store_true", help=sentence("cli.verify.markdown", {}))


def run_server(arguments: Namespace) -> int:
    """Run all checks and print the report. Raises BadRequest if the server does not answer."""
    client = Client(arguments.server, arguments.api_key)
    client.connect(arguments.model)
    results = []
    tqdm.monitor_interval = 0  # no thread of its own
    bar: tqdm[NoReturn]
    with tqdm(total=len(CHECKS), unit="check", disable=None, leave=False, ncols=80) as bar:
        for check in CHECKS:
            bar.set_description(check.title)
            results.append(judge(check, client))
            bar.update()
    report = Report(client.url, client.model, results)
    if arguments.json:
        json.dump(report.record(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    elif arguments.markdown:
        sys.stdout.write(report.markdown())
    else:
        sys.stdout.write(columns(report.rows) + report.summary + "\n")
    return 0 if report.passed else 1


_MARKS: Final = {Outcome.PASSED: "✓", Outcome.FAILED: "✗", Outcome.NOT_SUPPORTED: "–"}


@dataclass(frozen=True, slots=True)
class Report:
    url: str
    model: str
    results: Sequence[Result]

    @property
    def passed(self) -> bool:
        return all(result.outcome is not Outcome.FAILED for result in self.results)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells for a terminal, one row per check."""
        return [
            (_MARKS[result.outcome], result.title, result.outcome, result.seen)
            for result in self.results
        ]

    @property
    def summary(self) -> str:
        counted = Counter(result.outcome for result in self.results)
        return ", ".join(f"{counted[outcome]} {outcome}" for outcome in Outcome)

    def markdown(self) -> str:
        place = f"{_cell(self.model)} at {_cell(self.url)}"
        lines = [
            f"{place}, {_today()}, omlx verify {__version__}: {self.summary}",
            "",
            "| check | outcome | seen |",
            "|---|---|---|",
        ]
        lines += [
            f"| {result.title} | {result.outcome} | {_cell(result.seen)} |"
            for result in self.results
        ]
        return "\n".join(lines) + "\n"

    def record(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "model": self.model,
            "date": _today(),
            "omlx": __version__,
            "checks": [asdict(result) for result in self.results],
        }


def _cell(text: str) -> str:
    """Escape control characters and Markdown in a server's text."""
    for mark in "\\|<>`*_[]":
        text = text.replace(mark, f"\\{mark}")
    return escaped(text)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
