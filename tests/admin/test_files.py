"""Style sheets and scripts over HTTP."""

from __future__ import annotations

import re

import httpx

from omlx.admin.files import STYLES
from omlx.catalog import data_dir


def test_one_style_sheet_bundles_all_in_their_layers(browser: httpx.Client) -> None:
    answer = browser.get(STYLES)
    assert answer.headers["content-type"].startswith("text/css")
    assert "@import" not in answer.text
    files = sorted((data_dir("static") / "css").glob("*.css"))
    for path in files:
        if path.name != "app.css":
            assert path.read_text(encoding="utf-8") in answer.text, path.name
    assert len(re.findall(r"^@layer \w+ \{$", answer.text, re.M)) == len(files) - 1
    same = browser.get(STYLES, headers={"If-None-Match": answer.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["content-security-policy"]


def test_imports_of_scripts_are_served(browser: httpx.Client) -> None:
    folder = data_dir("static") / "js"
    for path in folder.glob("*.js"):
        for name in re.findall(
            r'^import [^"]*"\./([\w-]+\.js)";$', path.read_text(encoding="utf-8"), re.M
        ):
            answer = browser.get(f"/admin/static/js/{name}")
            assert answer.headers["content-type"].startswith(
                ("text/javascript", "application/javascript")
            ), name


def test_nothing_outside_static_is_served(browser: httpx.Client) -> None:
    for path in (
        "../pyproject.toml",
        "%2e%2e/pyproject.toml",
        "css/..%2f..%2fpyproject.toml",
        "vendor/",
    ):
        assert browser.get(f"/admin/static/{path}").status_code in (404, 405)
