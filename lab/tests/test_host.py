"""The host's share of a step, on both sides and with rows in one batch."""

from __future__ import annotations

from lab.bench.engine.suites import measure
from lab.bench.host import graphs, host
from lab.tests.subjects import subject


def test_the_host_is_measured_with_rows_in_one_batch() -> None:
    for case in host(steps=6):
        samples = measure(case, 1, lambda: None)
        rows = case.params["rows"]
        for (sample,) in (samples.ours[0], samples.theirs[0]):
            assert [len(tokens) for tokens in sample.tokens] == [6] * int(rows)
            assert sample.counted == 5 * rows  # the clock starts with the first tokens
            assert case.metric(sample) > 0


def test_graphs_are_built_for_model_and_draft_by_width() -> None:
    measured = subject()
    built = graphs(measured.model, measured.draft, calls=2)
    assert set(built) == {"model", "draft"}
    assert all(set(widths) == {"1", "4", "16"} for widths in built.values())
    assert set(graphs(measured.model, None, calls=2)) == {"model"}
