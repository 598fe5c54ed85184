"""Which scripts pages load: the bundle while it is current, else the modules."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from omlx.admin.web.rendering import ENTRIES, Scripts

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
