"""The profiler counts the product's functions and changes of file, while it records."""

import sys

from lab.journey import Journey
from omlx.draft_length import DraftLength
from omlx.exactness import Bounds


def test_calls_and_changes_of_file_are_counted_while_it_records():
    journey = Journey()
    sys.setprofile(journey.hook)
    try:
        DraftLength.exactly(3)  # not recorded yet
        with journey.recorded():
            DraftLength.exactly(4)
            Bounds(8, 2, 4).floor(9)
            len("no function of the product")
    finally:
        sys.setprofile(None)
    (calls,) = journey.calls.values()
    names = {code.co_qualname: n for code, n in calls.items()}
    assert names["DraftLength.exactly"] == 1
    assert names["Bounds.floor"] == 1
    assert journey.changes.total() == 2
