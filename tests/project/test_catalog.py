"""The catalogs of words: nothing that is said is missing, nothing that is there is unsaid, and all languages agree.

A key stands in the sources as a whole string (`t('ui.save')`), or, where it is built, as its beginning and its end:
`t('ui.nav.' ~ section)`, t(`ui.saved.${when}`), f"settings.{name}.help".
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
HOLE = re.compile(r"\$?\{[^}]*\}")
KEY = re.compile(r"[a-z]+(\.[\w-]+)+")
CALL = re.compile(r"""\bt\(\s*["'`]([^"'`]+)["'`]\s*(~?)""")


def texts() -> Iterator[tuple[str, str]]:
    for folder, kind in SOURCES:
        for path in sorted((ROOT / folder).rglob(kind)):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def strings() -> set[str]:
    return {match["text"] for _, text in texts() for match in STRING.finditer(text)}


def matches(literal: str) -> re.Pattern[str]:
    """What a string with holes, or one that something is put behind, can become."""
    return re.compile(
        r"[\w-]+".join(map(re.escape, HOLE.split(literal)))
        + (r"[\w.-]+" if literal[-1] == "." else "")
    )


def calls(folder: str) -> Iterator[tuple[str, str]]:
    """Each key that a template or a module asks for, as it stands there; one that goes on ends in a dot."""
    for path, text in texts():
        if path.startswith(folder):
            for literal, _ in CALL.findall(text):
                yield path, literal


@pytest.mark.parametrize("folder", ["templates", "static/js"])
def test_every_word_of_a_page_is_in_the_catalog(folder: str) -> None:
    asked = list(calls(folder))
    assert len(asked) > 3
    assert [
        (path, key)
        for path, key in asked
        if not any(matches(key).fullmatch(entry) for entry in ENGLISH)
    ] == []


def test_no_entry_is_unused() -> None:
    said = strings()
    built = [
        matches(each) for each in said if "." in each and (HOLE.search(each) or each.endswith("."))
    ]
    patterns = [
        pattern
        for pattern in built
        if pattern.pattern.startswith(("ui", "settings", "cli", "trial"))
    ]
    unused = {key for key in ENGLISH if key not in said}
    assert {
        key for key in unused if not any(pattern.fullmatch(key) for pattern in patterns)
    } == set()


def test_the_entries_are_in_order_and_none_is_empty() -> None:
    assert list(ENGLISH) == sorted(ENGLISH)
    assert [
        key for key, text in ENGLISH.items() if not text.strip() or not KEY.fullmatch(key)
    ] == []


def test_every_language_has_the_same_entries_and_placeholders() -> None:
    for path in LANGUAGES:
        entries: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        assert list(entries) == list(ENGLISH), path.stem
        differing = {
            key for key, text in entries.items() if placeholders(text) != placeholders(ENGLISH[key])
        }
        assert differing == set(), path.stem


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}
