"""Catalogs of sentences: every key in the sources exists, none is unused, and all languages have
the same entries.

A key is a whole string in the sources (`t('ui.save')`), or a string with a placeholder or an open
end where it is built: `t('ui.nav.' ~ section)`, t(`ui.saved.${when}`), f"settings.{name}.help".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from string import Formatter

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGLISH: dict[str, str] = json.loads((ROOT / "locales/en.json").read_text(encoding="utf-8"))
LANGUAGES = sorted(path for path in (ROOT / "locales").glob("*.json") if path.name != "en.json")
SOURCES = [("omlx", "*.py"), ("admin", "*.py"), ("templates", "*.html"), ("static/js", "*.js")]

STRING = re.compile(r"""(?P<quote>["'`])(?P<text>[^"'`\n]*)(?P=quote)""")
PLACEHOLDER = re.compile(r"\$?\{[^}]*\}")
KEY = re.compile(r"[a-z]+(\.[\w-]+)+")
CALL = re.compile(r"""\bt\(\s*["'`]([^"'`]+)["'`]\s*(~?)""")
BUILT_KEYS = ("ui", "settings", "cli", "trial", "benchmark")
"""First parts of keys that the sources build."""


def source_texts() -> Iterator[tuple[str, str]]:
    """Yield path and content of every source that may name a key."""
    for folder, pattern in SOURCES:
        for path in sorted((ROOT / folder).rglob(pattern)):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def source_strings() -> set[str]:
    literals: set[str] = set()
    for _, text in source_texts():
        literals.update(match["text"] for match in STRING.finditer(text))
    return literals


def key_pattern(literal: str) -> re.Pattern[str]:
    """Return the pattern of all keys that a literal with placeholders, or with an open end, can
    become.
    """
    pattern = r"[\w-]+".join(map(re.escape, PLACEHOLDER.split(literal)))
    return re.compile(pattern + r"[\w.-]+" if literal.endswith(".") else pattern)


def requested_keys(folder: str) -> Iterator[tuple[str, str]]:
    """Yield path and literal of each key that templates or modules of `folder` look up."""
    for path, text in source_texts():
        if path.startswith(folder):
            for literal, _ in CALL.findall(text):
                yield path, literal


def placeholders(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name is not None}


@pytest.mark.parametrize("folder", ["templates", "static/js"])
def test_every_key_of_a_page_is_in_the_catalog(folder: str) -> None:
    requested = {literal: path for path, literal in requested_keys(folder)}
    assert len(requested) > 3
    patterns = {key: key_pattern(key) for key in requested if key not in ENGLISH}
    missing = [key for key, known in patterns.items() if not any(map(known.fullmatch, ENGLISH))]
    assert [(requested[key], key) for key in missing] == []


def test_no_entry_is_unused() -> None:
    literals = source_strings()
    built = [
        key_pattern(literal)
        for literal in literals
        if literal.startswith(BUILT_KEYS)
        and "." in literal
        and (PLACEHOLDER.search(literal) or literal.endswith("."))
    ]
    unused = {
        key
        for key in ENGLISH
        if key not in literals and not any(pattern.fullmatch(key) for pattern in built)
    }
    assert unused == set()


def test_entries_are_sorted_and_none_is_empty() -> None:
    assert list(ENGLISH) == sorted(ENGLISH)
    malformed = [key for key, text in ENGLISH.items() if not text.strip() or not KEY.fullmatch(key)]
    assert malformed == []


def test_no_entry_has_marks_that_pages_would_show_raw() -> None:
    for path in (ROOT / "locales").glob("*.json"):
        assert "`" not in path.read_text(encoding="utf-8"), path.stem


def test_every_language_has_the_same_entries_and_placeholders() -> None:
    for path in LANGUAGES:
        entries: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        assert list(entries) == list(ENGLISH), path.stem
        differing = {
            key for key, text in entries.items() if placeholders(text) != placeholders(ENGLISH[key])
        }
        assert differing == set(), path.stem
