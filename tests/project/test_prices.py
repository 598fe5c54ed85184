"""docs/prices.md: each file has one feature, and the sums are those of `wc -l`."""

from __future__ import annotations

import re

import pytest

from lab.prices import PAGE, PRODUCT, feature_of, lines_of_features, page, python_files, wc


@pytest.mark.parametrize("folders", [PRODUCT, ("tests",)], ids=["product", "tests"])
def test_every_file_belongs_to_a_feature_and_the_sum_is_that_of_wc(
    folders: tuple[str, ...],
) -> None:
    paths = python_files(*folders)
    assert [path for path in paths if feature_of(path) is None] == []
    assert lines_of_features(paths).total() == wc(paths)


def test_the_longest_pattern_decides() -> None:
    assert feature_of("omlx/engine/new.py") == "engine: queue, batches, caches, memory"
    assert feature_of("omlx/engine/disk/new.py") == "prefixes on disk"
    assert feature_of("omlx/new_feature/page.py") is None


def test_a_file_of_no_feature_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"omlx/new_feature/page\.py belongs to no feature"):
        lines_of_features(["omlx/new_feature/page.py"])


def test_the_page_has_the_features_of_the_script_and_adds_up() -> None:
    """Its figures are those of the last `make prices`: no commit has to touch them."""
    rows = re.findall(
        r"^\| ([^*|\n]+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE.read_text(), re.M
    )
    assert {row[0] for row in rows} == set(re.findall(r"^\| ([^*\n]+?) \| \d", page(), re.M))
    files, product, tests = (sum(int(row[i].replace(",", "")) for row in rows) for i in (1, 2, 3))
    assert f"| **all** | {files} | {product:,} | {tests:,} |" in PAGE.read_text()
