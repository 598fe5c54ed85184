"""Upper bounds: lines of the wheel, of a file, of a function; files of a folder."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lab.prices import PRODUCT, lines, python_files

ROOT = Path(__file__).resolve().parents[2]
FILE, FUNCTION, LINE, FOLDER = 400, 60, 120, 14

WHEEL_LINES = 68_939
"""Lines of all modules in the wheel, which rise with a new feature alone, by `make prices`."""


def sources() -> Iterator[tuple[str, str]]:
    for folder in (*PRODUCT, "lab/bench", "lab/conformance"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def too_long() -> Iterator[tuple[str, int, int]]:
    for path, text in sources():
        if (length := len(text.splitlines())) > FILE:
            yield path, length, FILE
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION:
                    yield f"{path}::{node.name}", length, FUNCTION


def test_no_file_or_function_is_too_long() -> None:
    assert list(too_long()) == []


def test_no_folder_has_too_many_files() -> None:
    files = Counter(Path(path).parent.as_posix() for path in python_files(*PRODUCT))
    assert {folder: count for folder, count in files.items() if count > FOLDER} == {}


def test_the_wheel_does_not_grow() -> None:
    assert sum(lines(path) for path in python_files(*PRODUCT)) <= WHEEL_LINES


def test_no_line_of_a_page_is_too_long() -> None:
    files = [
        path
        for folder in ("templates", "static/css", "static/js")
        for path in (ROOT / folder).rglob("*.*")
    ]
    found = [
        (path.name, line)
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert found
    assert [(name, line) for name, line in found if len(line) > LINE] == []
