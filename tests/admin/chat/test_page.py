"""The model that the chat page begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.models.catalog.discovery import BUNDLED, scan_places
from omlx.models.catalog.places import Folder
from tests.admin.running import administered
from tests.server.running import DRAFT, HYBRID, TARGET


@pytest.mark.parametrize(
    ("default", "asked", "first"),
    [(None, "", TARGET), (DRAFT, "", DRAFT), (None, HYBRID, HYBRID), (None, "no/such", TARGET)],
)
def test_it_is_the_asked_one_the_default_or_the_largest_that_fits(
    tmp_path: Path, default: str | None, asked: str, first: str
) -> None:
    registry = scan_places([Folder("bundled", BUNDLED)])  # by name
    with administered(tmp_path, registry, default) as server, server.browser() as client:
        page = client.get("/admin/chat", params={"model": asked}).text
        assert f'<option value="{first}" selected>' in page
