"""docs/stages.md lists the architectures that can be split: the tables of `ends`, no others."""

from __future__ import annotations

from pathlib import Path

from omlx.engine.stage.ends import EVEN_ONLY, PIPELINED, SHARDED, STAGED

PAGE = Path(__file__).resolve().parents[3] / "docs/stages.md"


def rows() -> str:
    """The lines of the table."""
    lines = []
    for architecture in sorted({*STAGED, *SHARDED}):
        listed = "list" if architecture in STAGED else ""
        pipeline = "mlx-lm" if architecture in PIPELINED else listed
        even = ", even" if architecture in EVEN_ONLY else ""
        tensor = "yes" if architecture in SHARDED else ""
        lines.append(f"| `{architecture}` | {pipeline}{even} | {tensor} |\n")
    return "".join(lines)


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    table = "| architecture | pipeline | tensor |\n|---|---|---|\n" + rows()
    assert table + "\n" in PAGE.read_text(encoding="utf-8"), table
