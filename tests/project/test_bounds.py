"""Upper bounds on the length of files and functions."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE, FUNCTION, LINE = 400, 60, 120

STAGES = (
    "omlx/engine/stage/*.py",
    "omlx/cli/stage*.py",
    "omlx/cli/group.py",
    "omlx/cli/hostfile.py",
    "omlx/cli/supervisor.py",
    "omlx/models/pool/stage*.py",
)
STAGES_LINES = 1390
"""Lines of code of what exists only for a model over several machines."""

# path or path::name -> why it may be longer
EXCEPTIONS = {}


def sources() -> Iterator[tuple[str, str]]:
    for folder in ("omlx", "admin", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def lines_of_code(text: str) -> int:
    """Lines that hold code: no blank ones, no comments, no docstrings."""
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


def too_long() -> Iterator[tuple[str, int, int]]:
    for path, text in sources():
        if (lines := len(text.splitlines())) > FILE:
            yield path, lines, FILE
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION:
                    yield f"{path}::{node.name}", lines, FUNCTION


def test_no_file_or_function_is_too_long() -> None:
    assert [found for found in too_long() if found[0] not in EXCEPTIONS] == []


def test_every_exception_is_still_needed() -> None:
    assert set(EXCEPTIONS) <= {path for path, _, _ in too_long()}


def test_stages_do_not_grow() -> None:
    files = [path for pattern in STAGES for path in ROOT.glob(pattern)]
    lines = [lines_of_code(path.read_text(encoding="utf-8")) for path in files]
    assert all(any(ROOT.glob(pattern)) for pattern in STAGES)
    assert sum(lines) <= STAGES_LINES


def test_no_line_of_a_page_is_too_long() -> None:
    files = [
        path
        for folder in ("templates", "static/css", "static/js")
        for path in (ROOT / folder).rglob("*.*")
    ]
    lines = [
        (path.name, line)
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert lines
    assert [(name, line) for name, line in lines if len(line) > LINE] == []
