"""Errors of the device while a tower looks, or while rows with images are read."""

from __future__ import annotations

from itertools import count

import pytest

from omlx.engine.device_errors import DEVICE
from tests.engine.faults import INTERACTIVITY, FailingDevice
from tests.engine.harness import GREEDY, Bench
from tests.engine.vision.sighted import CAT, decode, loop_of, shown, sighted
from tests.lanes import few


@pytest.mark.parametrize("text", few([INTERACTIVITY, None], INTERACTIVITY))
@pytest.mark.parametrize(
    ("site", "every"),
    few(
        [("look", 2), ("prefill", 2), ("decode", 9), ("decode", 1)],
        ("look", 2),
        ("prefill", 2),
        ("decode", 9),
    ),
)
def test_a_failure_leaves_no_wrong_token_and_no_wrong_features(
    site: str, every: int, text: str | None
) -> None:
    rows = [shown("qwen3_vl", (CAT,), GREEDY, salt=salt, id=f"{salt}") for salt in (0, 4)]
    again = [shown("qwen3_vl", (CAT,), GREEDY, salt=salt, id=f"{salt}!") for salt in (0, 4)]
    answers = [decode(sighted("qwen3_vl"), request) for request in rows]
    for nth in count(0, every):
        with pytest.MonkeyPatch.context() as patch:
            device = FailingDevice(patch, site, nth, text)
            bench = Bench(loop_of(sighted("qwen3_vl")))
            bench.run(*rows)
            bench.run(*again)
            assert not bench.failed
        for requests in (rows, again):
            assert [bench.tokens[request.id] for request in requests] == answers, nth
        assert device.struck or nth
        assert DEVICE.lost is None
        if nth + every >= device.uses:
            break
    DEVICE.reset()
