"""python -m lab.fuzz --requests 5000 [--only /v1/messages] [--salt 1]"""

from __future__ import annotations

import argparse
import os
import sys

from lab.fuzz.campaign import Campaign, fuzzed
from omlx.cli.main import run_process


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lab.fuzz", description="Fuzz every operation of the API."
    )
    parser.add_argument("--requests", type=int, default=5000, help="for each operation")
    parser.add_argument("--only", default="", help="operations whose path contains this")
    parser.add_argument("--salt", type=int, default=0, help="other requests")
    asked = parser.parse_args()
    with fuzzed() as running:
        campaign = Campaign(running, asked.salt)
        campaign.run(max(20, asked.requests // 10), only=asked.only)
        campaign.settle()
        before = campaign.footprint()
        campaign.run(asked.requests, only=asked.only)
        campaign.settle()
        grown = (campaign.footprint() - before) / 2**20
    for operation, counts in campaign.statuses.items():
        print(operation, dict(sorted(counts.items())))  # noqa: T201
    print(f"memory grew by {grown:.1f} MiB")  # noqa: T201
    sys.stdout.flush()
    os._exit(0)  # as the server itself leaves: see docs/log.md


if __name__ == "__main__":
    run_process(main)
