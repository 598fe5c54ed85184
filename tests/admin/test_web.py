"""Style sheets and scripts over HTTP."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import httpx
import pytest

from omlx.admin.web.addresses import STATIC, model_path
from omlx.admin.web.formats import disk, duration, elapsed, memory, percent, ratio
from omlx.admin.web.preferences import choose_language
from omlx.admin.web.rendering import BUNDLE, ENTRIES, STYLES, Scripts
from omlx.catalog import data_dir
from omlx.settings.layers import parse
from omlx.settings.schema import table


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


def test_figures() -> None:
    assert [disk(n) for n in (0, 1_748_960, 812_000_000, 1_300_000_000, 17_200_000_000)] == [
        "0\u202fMB",
        "1.7\u202fMB",
        "812\u202fMB",
        "1.3\u202fGB",
        "17\u202fGB",
    ]
    assert [ratio(value) for value in (0.94, 1.0, 1.04, 1.06, 1.62, 12.34)] == [
        "0.94×",
        "1.00×",
        "1.04×",
        "1.1×",
        "1.6×",
        "12.3×",
    ]
    assert percent(0.744) == "74\u202f%"


def test_memory_is_shown_as_it_is_typed_and_as_activity_monitor_counts() -> None:
    row = table()["memory_limit"]
    typed = ("512MB", "2GB", "12GB", "18GB")
    sizes = [parse(row, text, "--memory-limit") for text in typed]
    assert [memory(size).replace("\u202f", "") for size in sizes if isinstance(size, int)] == list(
        typed
    )
    assert memory(3 * (24 << 30) // 4) == "18\u202fGB"
    assert (memory(0), memory(1_300_000_000)) == ("0\u202fMB", "1.2\u202fGB")


def test_measured_times_have_three_digits() -> None:
    times = (0, 0.004, 1.523, 12.42, 159.4, 3720, -23)
    shown = [elapsed(seconds).replace("\u202f", " ") for seconds in times]
    exact = ["0 s", "4 ms", "1.52 s", "12.4 s", "2 min 39 s", "1 h 2 min", "−23.0 s"]
    assert shown == exact


def test_units_of_time_are_translated() -> None:
    assert duration(40, "ko") == "40초"
    assert duration(40, "zh") == "40\u202f秒"
    assert duration(4800, "ko") == "1시간 20분"


def test_durations_are_rounded_coarsely() -> None:
    shown = [duration(seconds).replace("\u202f", " ") for seconds in (1, 42, 58, 150, 4800)]
    assert shown == ["5 s", "40 s", "1 min", "2 min", "1 h 20 min"]


def test_the_address_of_a_model_keeps_its_slashes_and_quotes_the_rest() -> None:
    assert model_path("org/a b?c#d") == "/admin/models/org/a%20b%3Fc%23d"


AVAILABLE = ("en", "ja", "ko", "zh")


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        (None, None, "en"),
        (None, "", "en"),
        (None, "fr,de;q=0.5", "en"),
        (None, "ko-KR,ko;q=0.9,en;q=0.8", "ko"),
        (None, "en;q=0.8,ja;q=0.9", "ja"),
        (None, "zh-Hans-CN", "zh"),
        (None, "zh-TW", "zh"),
        (None, "ZH", "zh"),
        (None, "ko;q=0,ja;q=0.1", "ja"),
        (None, "ko;q=much,ja", "ja"),
        (None, "*", "en"),
        ("ko", "ja", "ko"),
        ("xx", "ja", "ja"),
        ("../en", None, "en"),
    ],
)
def test_the_cookie_decides_then_the_preference_of_the_header(
    cookie: str | None, accepted: str | None, language: str
) -> None:
    assert choose_language(cookie, accepted, AVAILABLE) == language


COPY = "export const copy = 1;\n"


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A folder with the modules of `app` and their bundle."""
    modules = {"app.js": 'import "./copy.js";\n', "copy.js": COPY}
    for folder in ("js", "bundle"):
        (tmp_path / folder).mkdir()
    for name, text in modules.items():
        (tmp_path / "js" / name).write_text(text)
    (tmp_path / "bundle/app-1.js").write_text("const copy=1;")
    source_map = {
        "sources": [f"../js/{name}" for name in modules],
        "sourcesContent": [*modules.values()],
    }
    (tmp_path / "bundle/app-1.js.map").write_text(json.dumps(source_map))
    return tmp_path


def test_a_current_bundle_is_used(static: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "omlx.admin")
    scripts = Scripts(static)
    assert scripts.path("app") == scripts.path("app") == "bundle/app-1.js"
    assert caplog.records == []


def test_an_entry_without_a_bundle_is_its_module(
    static: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "omlx.admin")
    scripts = Scripts(static)
    assert scripts.path("chat") == scripts.path("chat") == ENTRIES["chat"]
    (record,) = caplog.records
    assert "make assets" in str(record.__dict__["fields"])


def test_an_edited_module_replaces_the_bundle_until_it_is_as_before(
    static: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "omlx.admin")
    scripts = Scripts(static)
    assert scripts.path("app") == "bundle/app-1.js"
    copy = static / "js/copy.js"
    edited_ns = copy.stat().st_mtime_ns + 1
    for number, (text, path) in enumerate(
        [(COPY.replace("1", "2"), ENTRIES["app"]), (COPY, "bundle/app-1.js")]
    ):
        copy.write_text(text)
        os.utime(copy, ns=(edited_ns + number, edited_ns + number))
        assert scripts.path("app") == path
    (record,) = caplog.records
    assert "copy.js" in str(record.__dict__["fields"])


def test_a_module_that_is_gone_makes_the_bundle_outdated(static: Path) -> None:
    scripts = Scripts(static)
    assert scripts.path("app") == "bundle/app-1.js"
    (static / "js/copy.js").unlink()
    assert scripts.path("app") == ENTRIES["app"]


def test_a_new_bundle_is_used_at_once(static: Path) -> None:
    scripts = Scripts(static)
    assert scripts.path("app") == "bundle/app-1.js"
    for name in ("app-1.js", "app-1.js.map"):
        (static / "bundle" / name).rename(static / "bundle" / name.replace("1", "2"))
    assert scripts.path("app") == "bundle/app-2.js"
