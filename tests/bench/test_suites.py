"""Every suite runs on tiny models, and both sides do the same work. Nothing here looks at a time."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import pytest

from omlx.bench.cli import run_suites
from omlx.bench.exact import exactness, seen_by_plain
from omlx.bench.host import graphs, host
from omlx.bench.measure import measure
from omlx.bench.sides import engine, request
from omlx.bench.suites import Settings, spec
from tests.bench.subjects import PROMPTS, subject

SETTINGS = Settings(trials=1, prompts=2, tokens=12, windows=(1, 3), rows=(1, 3))


def test_greedy_answers_equal_those_of_mlx_lm() -> None:
    results = run_suites(subject(), SETTINGS, ("plain", "spec", "batch"))
    exact = {result.case.name: result.exact for result in results if result.exact is not None}
    assert set(exact) == {"T=0", "T=0 k=1", "T=0 k=3", "T=0.8 k=1", "T=0.8 k=3", "1 rows", "3 rows"}
    assert {name: (e.same, e.first) for name, e in exact.items()} == {
        name: (e.of, None) for name, e in exact.items()
    }
    assert exact["T=0"].reference == "mlx-lm"
    assert exact["T=0.8 k=3"].reference == "omlx without speculation"
    assert exact["3 rows"].of == 3


def test_speculation_speculates_on_both_sides() -> None:
    results = run_suites(subject(), SETTINGS, ("spec",))
    for result in results:
        assert result.our_acceptance is not None
        assert result.their_acceptance is not None
        assert result.our_acceptance > 0
    greedy = results[0]
    assert greedy.our_acceptance == pytest.approx(greedy.their_acceptance, abs=0.1)


def test_both_sides_count_the_same_tokens() -> None:
    results = run_suites(subject(), SETTINGS, ("plain", "batch"))
    assert len(results) == 4
    for result in results:
        assert result.ours.median > 0
        assert result.theirs.median > 0


def test_answers_end_at_a_stop_token_on_both_sides() -> None:
    whole = engine(subject().loop, [request(PROMPTS[0], 12)]).tokens[0]
    results = run_suites(subject(stop_ids=frozenset({whole[5]})), SETTINGS, ("plain", "spec"))
    assert all(result.exact is None or result.exact.same == result.exact.of for result in results)


def test_where_mlx_lm_cannot_speculate_its_plain_decoding_is_the_other_side() -> None:
    hybrid = subject("lfm2")
    assert not hybrid.mlx_lm_speculates
    greedy, *_ = run_suites(hybrid, SETTINGS, ("spec",))
    assert greedy.case.baseline.startswith("generate_step")
    assert greedy.our_acceptance is not None
    assert greedy.their_acceptance is None
    assert greedy.exact is not None
    assert greedy.exact.first is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_difference_tells_how_near_a_tie_it_was(temperature: float) -> None:
    """Of what tokens were chosen by, which is the noise as well."""
    it, settings = subject(), replace(SETTINGS, prompts=1, windows=(3,))
    (case,) = (case for case in spec(it, settings) if case.params["temperature"] == temperature)
    measured = measure(case, 1, lambda: None)
    (run,) = measured.ours[0]
    (answer,) = run.tokens
    scores = seen_by_plain(it, request(PROMPTS[0], 12, temperature=temperature, seed=0), answer[:4])
    second, best = (int(token) for token in mx.argsort(scores)[-2:])
    assert answer[4] == best
    wrong = replace(run, tokens=((*answer[:4], second, *answer[5:]),))
    found = exactness(it, settings, replace(measured, ours=((wrong,),)))
    assert found is not None
    assert found.first is not None
    assert (found.same, found.first.token) == (0, 4)
    assert found.first.gap == pytest.approx(float(scores[best]) - float(scores[second]), abs=1e-5)


def test_the_host_is_measured_with_rows_in_one_batch() -> None:
    for case in host(steps=6):
        measured = measure(case, 1, lambda: None)
        rows = case.params["rows"]
        # The engine's second token is in flight when its first is told: the clock waits for it.
        for runs, counted in ((measured.ours, 4), (measured.theirs, 5)):
            assert [len(tokens) for tokens in runs[0][0].tokens] == [6] * int(rows)
            assert runs[0][0].counted == counted * rows
            assert case.metric(runs[0][0]) > 0


def test_graph_building_is_told_for_model_and_draft_by_width() -> None:
    it = subject()
    assert {role: set(widths) for role, widths in graphs(it.model, it.draft).items()} == {
        "model": {"1", "4", "16"},
        "draft": {"1", "4", "16"},
    }
    assert set(graphs(it.model, None)) == {"model"}
