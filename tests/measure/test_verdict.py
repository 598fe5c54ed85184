"""Verdicts: what is recommended, and in which words."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from omlx.measure.samples import (
    NGRAM,
    PLAIN,
    Place,
    Samples,
    TrialConfiguration,
    Verdict,
    configurations,
    join_list,
    render_verdict,
    verdict,
)
from omlx.measure.texts import Kind
from tests.measure.sample_sets import ALONE, AUTO, DRAFT, KINDS, answer, measured, steady


def judged(ratios: Mapping[TrialConfiguration, Mapping[Kind, Sequence[float]]]) -> Verdict:
    return verdict(measured(ratios), configurations([DRAFT]), KINDS)


def test_a_draft_that_pays_is_recommended_with_its_gains() -> None:
    result = judged({NGRAM: steady(1.3, 1.0), ALONE: steady(1.8, 1.1), AUTO: steady(1.8, 1.12)})
    assert result.code == "trial.verdict.auto"
    assert result.configuration == AUTO
    record = result.to_json()
    assert render_verdict(record) == (
        "Faster with draft model org/small: "
        "code edits 1.8× (1.8–1.8) and prose 1.1× (1.1–1.1). Keep auto."
    )
    for change in record["gains"]:  # as results were stored before
        del change["low"], change["high"]
    assert render_verdict(record) == (
        "Faster with draft model org/small: code edits 1.8× and prose 1.1×. Keep auto."
    )


def test_a_verdict_states_the_spread_of_its_figures() -> None:
    ratios = {Kind.CODE: [1.5, 1.8, 2.4], Kind.PROSE: [1.0, 1.0, 1.0]}
    assert "code edits 1.8× (1.5–2.4)" in render_verdict(judged({AUTO: ratios}).to_json())


def test_a_draft_that_is_no_faster_than_prompt_lookup_is_not_recommended() -> None:
    result = judged({NGRAM: steady(1.8, 1.0), ALONE: steady(1.8, 1.0), AUTO: steady(1.84, 1.0)})
    assert result.code == "trial.verdict.ngram"
    assert result.configuration == NGRAM
    assert result.configuration is not None
    assert result.configuration.changes == {"speculation": "ngram", "draft_model": None}


def test_draft_is_recommended_only_where_it_is_clearly_faster_than_auto() -> None:
    assert judged({AUTO: steady(1.5, 1.2), ALONE: steady(1.53, 1.2)}).configuration == AUTO
    result = judged({AUTO: steady(1.5, 1.2), ALONE: steady(1.9, 1.6)})
    assert result.code == "trial.verdict.draft"
    assert result.configuration == ALONE


def test_a_verdict_names_what_becomes_slower() -> None:
    result = judged({AUTO: steady(2.0, 0.8)})
    assert result.code == "trial.verdict.auto_but"
    assert render_verdict(result.to_json()) == (
        "Faster with draft model org/small: code edits 2.0× (2.0–2.0). "
        "Slower: prose 0.8× (0.8–0.8). Keep auto."
    )


@pytest.mark.parametrize("values", [[0.8, 1.3, 1.6], [0.99, 1.0, 1.02], [1.01, 1.03, 1.04]])
def test_a_spread_that_covers_one_or_a_small_gain_is_no_clear_difference(
    values: list[float],
) -> None:
    result = judged(
        {configuration: dict.fromkeys(KINDS, values) for configuration in (NGRAM, ALONE, AUTO)}
    )
    assert result.code == "trial.verdict.none"
    assert result.configuration is None


def test_where_everything_is_slower_off_is_recommended() -> None:
    result = judged({NGRAM: steady(0.9, 0.9), ALONE: steady(0.5, 0.4), AUTO: steady(0.8, 0.8)})
    assert result.code == "trial.verdict.off"
    assert result.configuration == PLAIN
    assert [round(loss.median, 1) for loss in result.losses.values()] == [0.9, 0.9]


def test_without_samples_nothing_is_recommended() -> None:
    assert verdict(Samples(), configurations([DRAFT]), KINDS) == Verdict("trial.verdict.none")
    silent = Samples()  # answers that ended at once
    for configuration in configurations([DRAFT]):
        silent.by_place[Place(0, DRAFT, Kind.CODE, configuration)] = answer((1,), 0.0)
    assert verdict(silent, configurations([DRAFT]), KINDS).code == "trial.verdict.none"


def test_noise_alone_never_recommends_a_change() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        ratios = {
            configuration: {kind: [rng.uniform(0.95, 1.05) for _ in range(5)] for kind in KINDS}
            for configuration in (NGRAM, ALONE, AUTO)
        }
        assert judged(ratios).configuration is None, seed


def test_lists_read_as_lists() -> None:
    assert [join_list(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
