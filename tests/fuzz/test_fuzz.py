from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from omlx.settings.schema import Settings
from tests.fuzz.campaign import Campaign
from tests.server.running import Running, omlx
from tests.server.spelling import spelling_pool

SLICE_S = 12
ROUND = 4
GROWTH_BYTES = 64 << 20


@contextmanager
def fuzzed() -> Iterator[Running]:
    """A server with short answers and low bounds on what it stores, so that growth is visible."""
    with omlx(
        Settings(max_tokens=16, max_context=512, prefix_bytes=8 << 20), build=spelling_pool
    ) as running:
        yield running


def test_malformed_requests_break_nothing_and_leave_nothing_behind() -> None:
    """A small part of `make fuzz`."""
    until = monotonic() + SLICE_S
    with fuzzed() as running:
        campaign = Campaign(running)
        campaign.run(ROUND)
        campaign.settle()
        before = campaign.footprint()
        while monotonic() < until:
            campaign.run(ROUND, until=until)
        campaign.settle()
        assert len(campaign.statuses) == len(campaign.operations)
        assert campaign.footprint() - before < GROWTH_BYTES
