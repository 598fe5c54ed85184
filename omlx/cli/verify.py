"""`omlx verify RECEIPT|ID…`: decode kept answers again, plainly and alone, and compare.

Exit status: 0 if all are the same, near-ties aside; 1 otherwise.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from omlx.catalog import sentence
from omlx.cli.arguments import configured, local_catalog
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, NotFound
from omlx.models.pool.pool import build_pool
from omlx.receipts.kept import AnswerStore
from omlx.receipts.verifier import Verdict, Verifier
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import add_flags
from omlx.settings.schema import Group

Claim: TypeAlias = tuple[str, Mapping[str, Any]]
"""A kept choice by id, with the fields of a client's receipt; empty without one."""


def run_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "receipts", metavar="RECEIPT|ID", nargs="+", help=sentence("cli.verify.receipts", {})
    )
    parser.add_argument("--json", action="store_true", help=sentence("cli.verify.json", {}))
    add_flags(parser, [Group.MODELS])


def run(arguments: Namespace) -> int:
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


async def _verify(
    claims: Sequence[Claim], store: AnswerStore, configuration: LiveConfiguration
) -> list[Verdict]:
    engine = EngineThread()
    engine.start()
    try:
        catalog = await asyncio.to_thread(local_catalog, configuration)
        verifier = Verifier(engine, build_pool(engine, catalog), store)
        return [await verifier.verify(id, fields) for id, fields in claims]
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
        yield id, {}


def _read(path: Path) -> Iterator[Claim]:
    """Yield the choices of a receipt, which may be part of a response."""
    try:
        record = json.loads(path.read_bytes())
        receipt = record.get("receipt", record)
        choices = receipt.pop("choices")
        for choice in choices:
            yield str(choice["id"]), {**receipt, **choice}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadRequest("receipt.unreadable", file=str(path), detail=str(error)) from error
