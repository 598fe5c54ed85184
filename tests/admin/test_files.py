"""Style sheets and scripts over HTTP."""

from __future__ import annotations

import re

import httpx
import pytest

from omlx.admin.web.addresses import STATIC
from omlx.admin.web.files import STYLES
from omlx.admin.web.rendering import BUNDLE
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


def test_what_bundled_scripts_import_is_served(browser: httpx.Client) -> None:
    bundled = sorted((data_dir("static") / BUNDLE).glob("*.js"))
    if not bundled:
        # In CI that is an error: tests/project/test_assets.py.
        pytest.skip("scripts are not bundled: `make assets` does it, where npm is")
    for path in bundled:
        imported = re.findall(
            r'(?:from|import\()\s*"\.\./([^"]+)"', path.read_text(encoding="utf-8")
        )
        assert "js/words.js" in imported
        for name in imported:
            assert browser.get(f"{STATIC}/{name}").status_code == 200, name


def test_a_bundle_that_is_gone_is_not_stored(browser: httpx.Client) -> None:
    answer = browser.get(f"{STATIC}/{BUNDLE}/app-OLD.js")
    assert (answer.status_code, answer.headers["cache-control"]) == (404, "no-cache")


def test_nothing_outside_static_is_served(browser: httpx.Client) -> None:
    for path in (
        "../pyproject.toml",
        "%2e%2e/pyproject.toml",
        "css/..%2f..%2fpyproject.toml",
        "vendor/",
    ):
        assert browser.get(f"/admin/static/{path}").status_code in (404, 405)
