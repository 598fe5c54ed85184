"""Docstrings, comments, documents, templates and English sentences use the field's terms: no banned
words.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BANNED = re.compile(
    r"\b(reckon\w*|anew|whoever|whomever|nobody|somebody|by now|besides|put by|told|dear|calm|dull"
    r"|faint|goes on|what comes|what there is|hostile|clairvoyant)\b",
    re.IGNORECASE,
)
CODE_FOLDERS = ("omlx", "admin", "tests", "training", "lab", "scripts")
SKIPPED_FOLDERS = ("node_modules", "vendor", "__pycache__")
RATES = {"what": 1.85, "it": 6.0, "its": 7.3, "one": 7.0, "that": 14.0}
"""Occurrences per 1,000 words of docstrings in the wheel. They only go down; goals: what 1, it and
its 10 together, one 3."""
BEGINNINGS = re.compile(r"(What|Which|Where|Of|Those|How|Who|It)\b")
VAGUE, LONG = 0, 137
"""Docstrings that begin with such a word, and those whose first sentence has more than 15 words.
Both only go down."""
GENERATED = re.compile(r"<!-- measured: begin -->.*?<!-- measured: end -->", re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]+`|\]\([^)]*\)|^ {4}.*$", re.MULTILINE)
"""What a document quotes: code, link targets, indented lines."""


def python_files() -> Iterator[Path]:
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not set(SKIPPED_FOLDERS) & set(path.parts):
                yield path


def documents() -> Iterator[Path]:
    """Yield every page; the history in docs/log.md keeps its words."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md")
    yield ROOT / "training/README.md"


def prose_of_python(path: Path) -> Iterator[str]:
    """Yield docstrings (of constants too) and comments."""
    text = path.read_text(encoding="utf-8")
    if not BANNED.search(text):  # parsing takes seconds for all files
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def banned_words(path: Path, prose: Iterator[str]) -> list[tuple[str, str]]:
    name = path.relative_to(ROOT).as_posix()
    return [(name, word) for text in prose for word in BANNED.findall(text)]


@pytest.mark.parametrize("folder", CODE_FOLDERS)
def test_docstrings_and_comments_have_no_banned_word(folder: str) -> None:
    banned: list[tuple[str, str]] = []
    for path in python_files():
        if path.relative_to(ROOT).parts[0] == folder:
            banned += banned_words(path, prose_of_python(path))
    assert banned == []


def test_documents_have_no_banned_word() -> None:
    banned: list[tuple[str, str]] = []
    for path in documents():
        text = GENERATED.sub("", path.read_text(encoding="utf-8"))
        banned += banned_words(path, iter([CODE_SPAN.sub("", text)]))
    assert banned == []


def test_templates_have_no_banned_word() -> None:
    banned: list[tuple[str, str]] = []
    for path in sorted((ROOT / "templates").rglob("*.html")):
        banned += banned_words(path, iter([path.read_text(encoding="utf-8")]))
    assert banned == []


def test_english_sentences_have_no_banned_word() -> None:
    path = ROOT / "locales/en.json"
    sentences: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    assert banned_words(path, iter(sentences.values())) == []


@cache
def docstrings() -> list[str]:
    """Return the docstrings of the wheel, those of constants and fields too."""
    found: list[str] = []
    for path in python_files():
        if path.relative_to(ROOT).parts[0] in ("omlx", "admin"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                match node:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found.append(" ".join(text.split()))
    return found


def test_vague_words_become_fewer() -> None:
    words = re.findall(r"[A-Za-z']+", " ".join(docstrings()).lower())
    rates = {word: round(1000 * words.count(word) / len(words), 2) for word in RATES}
    assert {word: rate for word, rate in rates.items() if rate > RATES[word]} == {}


def test_docstrings_begin_with_the_name_of_a_thing() -> None:
    vague = [text for text in docstrings() if BEGINNINGS.match(text)]
    firsts = [re.split(r"(?<=[.:;])\s", text, maxsplit=1)[0] for text in docstrings()]
    assert len(vague) <= VAGUE
    assert len([first for first in firsts if len(first.split()) > 15]) <= LONG
