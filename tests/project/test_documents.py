"""What the documents name is there: pages and their headings, files, modules, targets of make, commands and flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from omlx.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "training/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
NOW = [page for page in PAGES if page.name != "log.md"]
"""The log tells of what was."""

MADE = {"static/vendor", "training/.work"}
"""What a checkout has only after a command."""

NESTED = {"bench", "config", "package"}
FOLDERS = "omlx|admin|templates|static|locales|tests|training|scripts|docs|requirements"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
each_page_of_today = pytest.mark.parametrize("page", NOW, ids=lambda page: page.name)


def code(page: Path) -> Iterator[str]:
    """What stands in backticks, and every indented line, without its comment."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"`([^`\n]+)`", text)
    yield from (line.split(" #")[0].rstrip() for line in re.findall(r"^ {4}(\S.*)$", text, re.M))


def headings(page: Path) -> set[str]:
    """As links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def help_of(*command: str) -> str:
    said = StringIO()
    with pytest.raises(SystemExit) as ended, redirect_stdout(said):
        main([*command, "--help"])
    assert ended.value.code == 0, command
    return said.getvalue()


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for path, heading in re.findall(
        r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", page.read_text(encoding="utf-8")
    ):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not heading or heading in headings(target), (path, heading)


@each_page_of_today
def test_files_and_modules_are_there(page: Path) -> None:
    for snippet in code(page):
        if re.fullmatch(rf"(?:{FOLDERS})/[\w./-]+", snippet) and snippet not in MADE:
            assert (ROOT / snippet).exists(), snippet
        for module in re.findall(r"(?:^|-m )((?:omlx|tests|training)(?:\.[a-z_]+)+)$", snippet):
            file = ROOT / module.replace("omlx.admin", "admin").replace(".", "/")
            assert file.is_dir() or file.with_suffix(".py").is_file(), module


@each_page_of_today
def test_targets_of_make_are_there(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for snippet in code(page):
        if told := re.match(r"make ([a-z-]+)", snippet):
            assert re.search(rf"^{told[1]}:", makefile, re.M), snippet


@each_page_of_today
def test_commands_have_the_flags_that_are_named(page: Path) -> None:
    for snippet in code(page):
        if told := re.match(r"omlx ([a-z]+)(?: ([a-z]+))?", snippet):
            name, action = told.groups()
            assert name in COMMANDS, snippet
            known = help_of(name, action) if name in NESTED and action else help_of(name)
            for flag in re.findall(r"--[a-z-]+", snippet):
                assert re.search(rf"{flag}\b", known), snippet
