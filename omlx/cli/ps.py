"""`omlx ps`: models in memory of the running servers, their requests, the memory taken."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from omlx.admin.web.formats import elapsed
from omlx.catalog import sentence
from omlx.cli.arguments import configured
from omlx.cli.client import Client
from omlx.cli.output import columns, memory_size
from omlx.cli.serve.address import find_servers
from omlx.errors import ConfigError
from omlx.settings.schema import table

_COLUMNS: Final = ("model", "memory", "context", "requests", "idle")
_MEMORY: Final = "omlx_memory_bytes"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=sentence("cli.ps.json", {}))
    parser.add_argument("--home", metavar="DIR", help=table()["home"].help)


def run(arguments: Namespace) -> int:
    settings = configured(arguments).current.resolve().settings
    servers = find_servers(settings.home)
    if not servers:
        raise ConfigError("config.not_running", home=str(settings.home))
    records = [_record(Client(server.url, settings.api_key)) for server in servers]
    if arguments.json:
        json.dump(records, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        sys.stdout.write("\n".join(map(_text, records)))
    return 0


def _record(client: Client) -> dict[str, Any]:
    """Return a server's address, memory in bytes, and its models in memory."""
    models = client.get("/v1/models")["data"]
    loaded = [card["id"] for card in models if card["loaded"] and "parent" not in card]
    families = text_string_to_metric_families(client.text("/metrics"))
    samples = [sample for family in families for sample in family.samples]
    memory = {one.labels["what"]: int(one.value) for one in samples if one.name == _MEMORY}
    return {
        "url": client.address,
        "used_bytes": memory["used"],
        "limit_bytes": memory["limit"],
        "models": [client.model(model) for model in loaded],
    }


def _text(record: Mapping[str, Any]) -> str:
    memory = {name: memory_size(record[f"{name}_bytes"]) for name in ("used", "limit")}
    summary = sentence("cli.ps.server", {"url": record["url"], **memory})
    head = [sentence(f"cli.ps.column.{name}", {}) for name in _COLUMNS]
    rows = columns([_row(card) for card in record["models"]], head)
    return f"{summary}\n{rows or sentence('cli.ps.empty', {}) + chr(10)}"


def _row(card: Mapping[str, Any]) -> tuple[str, ...]:
    requests, idle = str(card["active"]), ""
    if card["waiting"]:
        counts = {"active": card["active"], "waiting": card["waiting"]}
        requests = sentence("cli.ps.waiting", counts)
    if not card["active"] and card["idle_s"] is not None:
        idle = elapsed(card["idle_s"])
    memory, context = memory_size(card["weights_bytes"]), f"{card['context_length']:,}"
    return card["id"], memory, context, requests, idle
