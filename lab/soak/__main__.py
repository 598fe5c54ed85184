"""An hour of mixed load on one server: no errors, and memory, handles, threads and disk stay flat.

python -m lab.soak --minutes 60 [--plot docs/measured/soak.svg]

Eight clients send chats, tool calls, schemas and long prompts, cut streams and resume some of
them. Two models take turns under a memory limit for one and a half. Exit status 1: an error, or a
figure that grew beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from lab.soak.run import Plan, soak
from omlx.cli.main import run_process


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--salt", type=int, default=0, help="other requests")
    parser.add_argument("--json", type=Path, help="write all samples and counts here")
    parser.add_argument("--plot", type=Path, help="draw the figures as SVG here")
    arguments = parser.parse_args()
    plan = Plan(arguments.minutes * 60, arguments.streams, salt=arguments.salt)
    with tempfile.TemporaryDirectory(prefix="omlx-soak-") as folder:
        result = soak(plan, Path(folder), show=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result.to_json()))
    if arguments.plot is not None:
        from lab.bench.plot import save_timelines  # noqa: PLC0415 — draws with matplotlib

        save_timelines(arguments.plot, result.minutes, result.series, result.title)
    print(result)  # noqa: T201
    return 0 if result.passed else 1


if __name__ == "__main__":
    run_process(main)
