"""Probe every architecture and write the tables below the mark of docs/model-support.md.

`python -m lab.probe NAME…` prints the rows of these architectures alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab.probe.report import Verdict, examine, page
from omlx.cli.main import run_process
from tests import zoo

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model-support.md"
MARK = "<!-- from here on written by `python -m lab.probe` -->"


def main() -> None:
    verdicts: list[Verdict] = []
    named = sys.argv[1:]
    for name in named or (*zoo.FAMILIES, *zoo.BORROWED_NAMES):
        verdicts.append(examine(name))
        sys.stdout.write(verdicts[-1].line + "\n")
        sys.stdout.flush()
    if named:
        return
    above = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    PAGE.write_text(f"{above}{MARK}\n\n{page(verdicts)}", encoding="utf-8")


if __name__ == "__main__":
    run_process(main)
