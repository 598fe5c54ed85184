"""Names in the documents exist: pages, headings, files, modules, targets of make, commands and
options.
"""

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
    *sorted(ROOT.glob("*.md")),
    ROOT / "training/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
CURRENT_PAGES = [page for page in PAGES if page.name != "log.md"]
"""The log names things that no longer exist."""

GENERATED_PATHS = {"static/bundle", "static/vendor", "training/.work"}
"""Paths that a checkout has only after a command."""

NESTED_COMMANDS = {"config", "keys", "service", "package"}
FOLDERS = "omlx|admin|templates|static|locales|tests|training|lab|scripts|docs|requirements"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
every_current_page = pytest.mark.parametrize("page", CURRENT_PAGES, ids=lambda page: page.name)


def code_snippets(page: Path) -> Iterator[str]:
    """Yield the text in backticks, and every indented line without its comment."""
    text = page.read_text(encoding="utf-8")
    if page.name == "CHANGELOG.md":
        text = text.partition("\n## [0.")[0]  # what was released had other names
    yield from re.findall(r"`([^`\n]+)`", text)
    for line in re.findall(r"^ {4}(\S.*)$", text, re.M):
        yield line.split(" #")[0].rstrip()


def anchors(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def help_text(*command: str) -> str:
    output = StringIO()
    with pytest.raises(SystemExit) as exit_info, redirect_stdout(output):
        main([*command, "--help"])
    assert exit_info.value.code == 0, command
    return output.getvalue()


@every_page
def test_links_have_a_target(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)]*)\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), (path, anchor)


@every_current_page
def test_files_and_modules_exist(page: Path) -> None:
    for snippet in code_snippets(page):
        if re.fullmatch(rf"(?:{FOLDERS})/[\w./-]+", snippet) and snippet not in GENERATED_PATHS:
            assert (ROOT / snippet).exists(), snippet
        for module in re.findall(r"(?:^|-m )((?:omlx|tests|training|lab)(?:\.[a-z_]+)+)$", snippet):
            file = ROOT / module.replace("omlx.admin", "admin").replace(".", "/")
            assert file.is_dir() or file.with_suffix(".py").is_file(), module


@every_current_page
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for snippet in code_snippets(page):
        command = re.match(r"make ([a-z-]+)", snippet)
        if command:
            assert re.search(rf"^{command[1]}:", makefile, re.M), snippet


@every_current_page
def test_commands_have_the_named_options(page: Path) -> None:
    for snippet in code_snippets(page):
        command = re.match(r"omlx ([a-z]+)(?: ([a-z]+))?", snippet)
        if not command:
            continue
        name, action = command.groups()
        assert name in COMMANDS, snippet
        known = help_text(name, action) if name in NESTED_COMMANDS and action else help_text(name)
        for option in re.findall(r"--[a-z-]+", snippet):
            assert re.search(rf"{option}\b", known), snippet
