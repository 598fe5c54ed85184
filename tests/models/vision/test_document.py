"""docs/vision.md names the families that have an eye, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

from omlx.models.library.choose import WRAPPERS
from omlx.models.vision.support import CROSS_ATTENTION, EXTRA, FAMILIES, MAX_TOKENS

PAGE = (Path(__file__).resolve().parents[3] / "docs/vision.md").read_text(encoding="utf-8")


def test_the_table_has_every_family() -> None:
    table = PAGE.partition("## Families")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted([*FAMILIES, "model_type"])


def test_the_page_names_what_is_refused_and_what_to_install() -> None:
    assert all(f"`{name}`" in PAGE for name in (*CROSS_ATTENTION, *WRAPPERS))
    assert EXTRA in PAGE
    assert f"{MAX_TOKENS:,} tokens" in PAGE
