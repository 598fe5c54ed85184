"""What must hold on every page, as functions of a page that is open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page

AXE: Final = Path(__file__).resolve().parents[3] / "node_modules/axe-core/axe.min.js"
_RAW: Final = re.compile(r"\b(?:ui|spec|draft|settings|model|cli)\.[a-z_]+(?:\.[a-z_]+)*\b")

# Elements that stick out of the window, or whose text sticks out of them, unless something around them scrolls.
_OVERFLOW: Final = """() => {
  const scrolls = (element) => /auto|scroll|hidden|clip/.test(getComputedStyle(element).overflowX);
  const held = (element) => {
    let up = element.parentElement;
    while (up && up !== document.body && !scrolls(up)) up = up.parentElement;
    return up !== null && up !== document.body;
  };
  const shown = (element) => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length;
  const name = ({ tagName, className, textContent }) => `${tagName}.${className}: ${textContent.trim().slice(0, 40)}`;
  const found = [];
  if (document.scrollingElement.scrollWidth > innerWidth) found.push(`page: ${document.scrollingElement.scrollWidth}`);
  for (const element of document.body.querySelectorAll("*")) {
    if (!shown(element) || held(element) || element.closest(".visually-hidden, .announcer, .skip, svg")) continue;
    const box = element.getBoundingClientRect();
    if (box.right > innerWidth + 1 || box.left < -1) found.push(`outside: ${name(element)}`);
    const tight = element.matches("button, a, .chip, .badge, label, summary, th, td, h1, h2, dt, dd");
    if (tight && !scrolls(element) && element.clientWidth && element.scrollWidth > element.clientWidth + 1)
      found.push(`inside: ${name(element)}`);
  }
  return found;
}"""

_REACHABLE: Final = """() => {
  const able = "a[href], button:not(:disabled), input:not([type=hidden]):not(:disabled), select, textarea, summary";
  const skipped = (element) => element.type === "radio" && !element.checked; // the arrows reach those
  const all = [...document.querySelectorAll(able)].filter((each) => each.checkVisibility() && !skipped(each));
  all.forEach((element, number) => (element.dataset.reach = number));
  document.activeElement?.blur();
  getSelection()?.removeAllRanges();
  return all.map(({ tagName, textContent, name }) => `${tagName} ${textContent.trim().slice(0, 30) || name}`);
}"""
_REACHED: Final = """() => {
  const element = document.activeElement, around = [element, element.nextElementSibling];
  for (let up = element.parentElement; up && around.length < 5; up = up.parentElement) around.push(up);
  const outlined = ({ outlineStyle, outlineWidth }) => outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
  const visible = around.some((each) => each && outlined(getComputedStyle(each)));
  return { number: element.dataset.reach ?? null, visible };
}"""


def check_fits(page: Page) -> None:
    """Nothing sticks out, of the window or of its own box."""
    assert page.evaluate(_OVERFLOW) == []


def check_words(page: Page, language: str) -> None:
    """It is in that language, and no code stands where words belong."""
    assert page.locator("html").get_attribute("data-language") == language
    text = page.locator("body").inner_text()
    commands = "\n".join(page.locator("code, pre").all_inner_texts())
    assert [found for found in _RAW.findall(text) if found not in commands] == []


def check_keyboard(page: Page) -> None:
    """Tab reaches everything that can be used, in the end, and shows where it is."""
    able = page.evaluate(_REACHABLE)
    reached: set[int] = set()
    for _ in range(len(able) + 5):
        page.keyboard.press("Tab")
        now = page.evaluate(_REACHED)
        if now["number"] is not None:
            assert now["visible"], able[int(now["number"])]
            reached.add(int(now["number"]))
    assert [name for number, name in enumerate(able) if number not in reached] == []


def check_accessible(page: Page, axe: str) -> None:
    """axe-core finds nothing serious."""
    page.evaluate(axe)
    found: dict[str, Any] = page.evaluate(
        "() => axe.run(document, { resultTypes: ['violations'], preload: false })"
    )
    serious = [
        f"{each['id']} ({each['impact']}): {node['html'][:120]} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
    assert serious == []
