"""A small part of `python -m lab.fuzz.stalls`, whose bounds are for an idle machine; these are
far below what any of the requests took before it was limited."""

from __future__ import annotations

import pytest

from lab.fuzz.stalling_requests import stalling_requests
from lab.fuzz.stalls import GOOD, attacked

HEALTH_S = 2.0
MARGIN_S = 3.0
KEPT_BYTES = 256 << 20


@pytest.mark.slow
def test_another_client_hardly_notices_a_stalling_request() -> None:
    with attacked() as target:
        for request in stalling_requests(GOOD):
            if not request.quick:
                continue
            row = target.measure(request, settle_s=0)
            assert row.status is None or 400 <= row.status < 500, row
            assert row.health_s < HEALTH_S, row
            assert row.first_token_s < 2 * target.alone_s + MARGIN_S, row
        assert target.kept < KEPT_BYTES
