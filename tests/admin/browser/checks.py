"""Checks of an open page that hold for every page."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from playwright.sync_api import Page, ViewportSize

from omlx.catalog import languages
from tests import lanes
from tests.admin.browser.chromium import DESKTOP, PHONE, SCHEMES, VIEWPORTS, complaints_of

AXE: Final = Path(__file__).resolve().parents[3] / "node_modules/axe-core/axe.min.js"
_RAW: Final = re.compile(r"(?<!/)\b(?:ui|spec|draft|settings|model|cli)\.[a-z_]+(?:\.[a-z_]+)*\b")

# Elements that overflow the window, or whose text overflows them, unless an ancestor scrolls.
_OVERFLOW: Final = """() => {
  const scrolls = (element) => /auto|scroll|hidden|clip/.test(getComputedStyle(element).overflowX);
  const held = (element) => {
    let up = element.parentElement;
    while (up && up !== document.body && !scrolls(up)) up = up.parentElement;
    return up !== null && up !== document.body;
  };
  const shown = (element) =>
    element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length;
  const name = ({ tagName, className, textContent }) =>
    `${tagName}.${className}: ${textContent.trim().slice(0, 40)}`;
  const unchecked = ".visually-hidden, .announcer, .skip, svg";
  const single = "button, a, .chip, .badge, label, summary, th, td, h1, h2, dt, dd";
  const found = [];
  const { scrollWidth } = document.scrollingElement;
  if (scrollWidth > innerWidth) found.push(`page: ${scrollWidth}`);
  for (const element of document.body.querySelectorAll("*")) {
    if (!shown(element) || held(element) || element.closest(unchecked)) continue;
    const box = element.getBoundingClientRect();
    if (box.right > innerWidth + 1 || box.left < -1) found.push(`outside: ${name(element)}`);
    const wide = element.clientWidth && element.scrollWidth > element.clientWidth + 1;
    if (element.matches(single) && !scrolls(element) && wide)
      found.push(`inside: ${name(element)}`);
  }
  return found;
}"""

# Two frames after a resize: charts have been drawn at their new size.
_RESIZED: Final = """() => new Promise((resolve) =>
  requestAnimationFrame(() => requestAnimationFrame(resolve)))"""

_REACHABLE: Final = """() => {
  const controls = "a[href], button:not(:disabled), select, textarea, summary, "
    + "input:not([type=hidden]):not(:disabled)";
  const skipped = ({ type, checked }) => type === "radio" && !checked; // reached by arrow keys
  const all = [...document.querySelectorAll(controls)]
    .filter((element) => element.checkVisibility() && !skipped(element));
  window.reachable = all; // an attribute would be taken away by a part that is refreshed
  document.activeElement?.blur();
  getSelection()?.removeAllRanges();
  return all.map(({ tagName, textContent, name }) =>
    `${tagName} ${textContent.trim().slice(0, 30) || name}`);
}"""
_REACHED: Final = """() => {
  const element = document.activeElement, around = [element, element.nextElementSibling];
  for (let up = element.parentElement; up && around.length < 5; up = up.parentElement)
    around.push(up);
  const outlined = ({ outlineStyle, outlineWidth }) =>
    outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
  const visible = around.some((near) => near && outlined(getComputedStyle(near)));
  const number = window.reachable.indexOf(element);
  return { number: number < 0 ? null : number, visible };
}"""


def check_fits(page: Page, viewports: Iterable[ViewportSize] = VIEWPORTS) -> None:
    """Nothing overflows the window or its own box, at every size of the window."""
    for viewport in viewports:
        page.set_viewport_size(viewport)
        page.evaluate(_RESIZED)
        assert page.evaluate(_OVERFLOW) == [], viewport


def check_words(page: Page, language: str) -> None:
    """The page is in that language, and shows no untranslated code."""
    assert page.locator("html").get_attribute("data-language") == language
    text = page.locator("body").inner_text()
    commands = "\n".join(page.locator("code, pre").all_inner_texts())
    assert [code for code in _RAW.findall(text) if code not in commands] == []


def check_keyboard(page: Page) -> None:
    """Tab reaches every control, and the focus is visible."""
    controls = page.evaluate(_REACHABLE)
    reached: set[int] = set()
    for _ in range(2 * len(controls) + 20):  # a page that is still loading gets more controls
        if len(reached) == len(controls):
            break
        page.keyboard.press("Tab")
        now = page.evaluate(_REACHED)
        if now["number"] is not None:
            assert now["visible"], controls[now["number"]]
            reached.add(now["number"])
    assert [name for number, name in enumerate(controls) if number not in reached] == []


def check_languages(page: Page, path: str, viewports: Iterable[ViewportSize] = VIEWPORTS) -> None:
    """The page at `path` has its words in every language, and fits."""
    for language in languages():
        page.context.add_cookies([{"name": "omlx_language", "value": language, "url": page.url}])
        page.goto(path)
        check_words(page, language)
        check_fits(page, viewports)
    page.context.clear_cookies(name="omlx_language")
    page.goto(path)


def check_accessible(page: Page, viewports: Iterable[ViewportSize] = (DESKTOP, PHONE)) -> None:
    """axe-core finds no serious violation, in both themes and at every size of the window; where
    slow tests are left out, in the themes by turns.
    """
    complaints = complaints_of(page)
    complaints.check()
    complaints.expect("inline")  # axe-core tries to style the page while it looks
    page.evaluate(_axe())
    turns = zip(viewports, itertools.cycle(SCHEMES), strict=False)
    for viewport, scheme in itertools.product(viewports, SCHEMES) if lanes.slow else turns:
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme)
        page.evaluate(_RESIZED)
        result: dict[str, Any] = page.evaluate(
            "() => axe.run(document, { resultTypes: ['violations'], preload: false })"
        )
        serious = []
        for violation in result["violations"]:
            if violation["impact"] in ("serious", "critical"):
                serious += [(violation["id"], node["html"]) for node in violation["nodes"]]
        assert serious == [], (viewport, scheme)


@cache
def _axe() -> str:
    """Return the source of axe-core."""
    if not AXE.exists():
        missing("no axe-core: `make assets` brings it, where npm is")
    return AXE.read_text(encoding="utf-8")


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
