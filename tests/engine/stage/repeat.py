"""Runs one way to split a model many times, one after the other, and counts runs that hang.

python -m tests.engine.stage.repeat FAMILY WAY [--ranks N] [--runs N] [--patience SECONDS]

A way: layers by rank, such as 2,1, or "tensor", over --ranks processes. Each run is one of
test_stages, with the same checks. Status 1 if a run hung or was wrong; its reason is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.engine.stage.ranks import PATIENCE_S, Hung
from tests.engine.stage.test_stages import prove


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("family")
    parser.add_argument("way")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds of one run")
    args = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for number in range(1, args.runs + 1):
        began = time.monotonic()
        outcome = run(args)
        outcomes[outcome] += 1
        load = os.getloadavg()[0]
        sys.stdout.write(f"{number} {outcome} {time.monotonic() - began:.1f} s, load {load:.1f}\n")
        sys.stdout.flush()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    sys.stdout.write(f"{args.family} {args.way}: {counts} of {args.runs}\n")
    return 0 if outcomes["right"] == args.runs else 1


def run(args: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            prove(args.family, [args.way], Path(folder), args.ranks, args.patience)
        except AssertionError as error:
            sys.stdout.write(f"{error}\n")
            return "hung" if isinstance(error, Hung) else "wrong"
    return "right"


if __name__ == "__main__":
    sys.exit(main())
