"""Python functions cut from the running interpreter's standard library, split into training and
held-out files.
"""

from __future__ import annotations

import ast
import random
import sysconfig
import textwrap
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_ONE_IN = 20  # files; chosen by a hash of the path, so the split never moves
SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "lib2to3",
    "encodings",
    "__pycache__",
    "pydoc_data",
}
SHORTEST, LONGEST = 3, 20  # lines of a function


@dataclass(frozen=True, slots=True)
class Library:
    """Source files and the short functions in them."""

    files: list[str]
    functions: list[str]

    def code(self, rng: random.Random) -> str:
        """Return one function."""
        return rng.choice(self.functions)

    def file(self, rng: random.Random) -> str:
        """Return one whole source file."""
        return rng.choice(self.files)


def load_libraries() -> tuple[Library, Library]:
    """Return the (training, held-out) libraries of this interpreter."""
    training, held_out = Library([], []), Library([], [])
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED & set(relative.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
            functions = cut_functions(text)
        except (SyntaxError, UnicodeDecodeError):
            continue
        library = (
            held_out
            if zlib.crc32(relative.as_posix().encode()) % HELD_OUT_ONE_IN == 0
            else training
        )
        library.files.append(text)
        library.functions.extend(functions)
    return training, held_out


def cut_functions(text: str) -> list[str]:
    """Return all functions of ``text`` within the length limits, dedented, without docstrings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in strings
        tree = ast.parse(text)
    lines = text.splitlines()
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = lines[node.lineno - 1 : node.end_lineno]
        if ast.get_docstring(node) is not None and len(node.body) > 1:
            # Long docstrings would fill most snippets; the edit tasks add short ones of their own.
            first = node.body[0]
            body = (
                lines[node.lineno - 1 : first.lineno - 1]
                + lines[first.end_lineno or first.lineno : node.end_lineno]
            )
        code = textwrap.dedent("\n".join(line.rstrip() for line in body)).strip("\n")
        if SHORTEST <= code.count("\n") + 1 <= LONGEST and "```" not in code and "\t" not in code:
            found.append(code)
    return found
