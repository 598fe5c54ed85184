"""`omlx verify --server URL`: check any server with OpenAI's chat API from outside.

Exit status: 0 if no check has failed, 1 if one has, 2 if the server does not answer.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import NoReturn

from tqdm import tqdm

from omlx.catalog import sentence
from omlx.cli.output import columns
from omlx.conformance.client import Client
from omlx.conformance.report import Report
from omlx.conformance.suite import CHECKS, judge


def add_server_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--server", metavar="URL", help=sentence("cli.verify.server", {}))
    group.add_argument("--model", metavar="MODEL", help=sentence("cli.verify.model", {}))
    group.add_argument("--api-key", metavar="KEY", help=sentence("cli.verify.key", {}))
    group.add_argument("--markdown", action="store_true", help=sentence("cli.verify.markdown", {}))


def run_server(arguments: Namespace) -> int:
    """Run all checks, and print the report. Raises BadRequest if the server does not answer."""
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
