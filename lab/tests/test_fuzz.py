"""Small parts of the campaigns of `make fuzz`."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from lab.fuzz.campaign import Campaign, fuzzed
from lab.fuzz.stalling_requests import stalling_requests
from lab.fuzz.stalls import GOOD, attacked
from lab.fuzz.tokens import DRAFT, TRAINED, fuzz_family

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


HEALTH_S = 2.0
MARGIN_S = 3.0
KEPT_BYTES = 256 << 20


@pytest.mark.slow
def test_another_client_hardly_notices_a_stalling_request() -> None:
    """Bounds of an idle machine are lower; before limits, no request took less than these."""
    with attacked() as target:
        for request in stalling_requests(GOOD):
            if not request.quick:
                continue
            row = target.measure(request, settle_s=0)
            assert row.status is None or 400 <= row.status < 500, row
            assert row.health_s < HEALTH_S, row
            assert row.first_token_s < 2 * target.alone_s + MARGIN_S, row
        assert target.kept < KEPT_BYTES


REQUESTS = 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "drafter"),
    [(name, DRAFT) for name in ("llama", "gemma3_text", "falcon_h1")]
    + [pytest.param(*pair, marks=pytest.mark.needs_extra) for pair in TRAINED[::3]],
)
def test_answers_are_those_of_plain_decoding_alone(
    family: str, drafter: str, tmp_path: Path
) -> None:
    """A small part of `make fuzz-tokens`."""
    outcome = fuzz_family(family, REQUESTS, 0, tmp_path, drafter)
    assert outcome.statuses.keys() == {200}
    assert outcome.drafted > 0
    assert outcome.accepted > 0 or drafter != DRAFT
    assert outcome.cached > 0
    assert outcome.differences == []
