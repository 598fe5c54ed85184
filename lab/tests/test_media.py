"""A small part of `make fuzz-media`."""

from __future__ import annotations

from pathlib import Path

import pytest

from omlx.models.pool.footprint import footprint

GROWTH_BYTES = 192 << 20
REQUESTS = 60


@pytest.mark.slow
@pytest.mark.needs_extra
def test_images_of_any_kind_break_nothing(tmp_path: Path) -> None:
    from lab.fuzz.media import MediaCampaign  # noqa: PLC0415 — needs the extra
    from tests.server.media.pictures import QWEN, SMOL, seeing  # noqa: PLC0415 — needs the extra

    with seeing(tmp_path, QWEN, SMOL) as running:
        campaign = MediaCampaign(running)
        campaign.run(REQUESTS // 3)
        before = footprint()
        campaign.run(REQUESTS)
        assert footprint() - before < GROWTH_BYTES
        assert campaign.statuses["200"] > REQUESTS // 6
        assert len(campaign.statuses) > 5
