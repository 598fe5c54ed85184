"""A small part of `make fuzz`."""

from __future__ import annotations

from time import monotonic

from lab.fuzz.campaign import Campaign, fuzzed

SLICE_S = 12
ROUND = 4
GROWTH_BYTES = 64 << 20


def test_malformed_requests_break_nothing_and_leave_nothing_behind() -> None:
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
