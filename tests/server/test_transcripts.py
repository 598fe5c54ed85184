"""Each dialect's output for lists of events, against golden transcripts."""

from __future__ import annotations

from itertools import chain

import pytest

from omlx.errors import EngineError
from tests.server.transcripts import ENCODERS, EVENTS, GOLDEN, choice_events, shown


@pytest.mark.parametrize("case", EVENTS)
@pytest.mark.parametrize("dialect", ENCODERS)
def test_a_transcript_is_as_it_was(dialect: str, case: str) -> None:
    assert (GOLDEN / f"{dialect}.{case}.json").read_text(encoding="utf-8") == shown(dialect, case)


@pytest.mark.parametrize("case", EVENTS)
@pytest.mark.parametrize("dialect", ENCODERS)
def test_any_batching_of_the_events_gives_the_same_stream(dialect: str, case: str) -> None:
    single, whole = ENCODERS[dialect](), ENCODERS[dialect]()
    assert single.start() == whole.start()
    events = choice_events(EVENTS[case])
    one_by_one = list(chain.from_iterable(single.feed([event]) for event in events))
    assert one_by_one == whole.feed(events)


@pytest.mark.parametrize("dialect", ENCODERS)
def test_what_failed_is_told_wherever_it_happens(dialect: str) -> None:
    events = choice_events(EVENTS["calls"])
    for at in range(len(events)):
        encoder = ENCODERS[dialect]()
        encoder.start()
        encoder.feed(events[:at])
        assert "went wrong" in str(encoder.failed(EngineError("engine.step", detail="went wrong")))
