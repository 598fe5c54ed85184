"""A trial: its order, its estimate, what its samples decide, and in which words."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from omlx.measure import sample
from omlx.measure.planning import Estimate, Weights, estimate
from omlx.measure.results import Conditions, ResultStore, StoredResult
from omlx.measure.samples import (
    NGRAM,
    PLAIN,
    Place,
    Samples,
    TrialConfiguration,
    Verdict,
    configurations,
    find_configuration,
    join_list,
    render_verdict,
    verdict,
    visits,
)
from omlx.measure.texts import WRITTEN, Kind, question
from omlx.measure.trial import Plan, Trial
from tests.measure.sample_sets import (
    ALONE,
    AUTO,
    DRAFT,
    KINDS,
    OTHER,
    TOKENS,
    answer,
    measured,
    steady,
)


def test_another_round_is_needed_only_while_a_speedup_is_unclear() -> None:
    decided = measured({AUTO: steady(1.8, 1.0)})
    assert not decided.undecided(configurations([DRAFT]), KINDS)
    unclear = measured({AUTO: {Kind.CODE: [0.9, 1.4, 1.5]}})
    assert unclear.undecided(configurations([DRAFT]), KINDS)


EARLIER = StoredResult({"overall": None}, 1.0, Conditions("a Mac"))


def cells_of(samples: Samples, home: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The cells of a trial's report, which replaces an earlier one but no figure of a draft."""
    trial, store = Trial(Plan("org/model", (DRAFT,), KINDS, 100)), ResultStore(home)
    trial.samples = samples
    store.save_trial("org/model", EARLIER, {DRAFT: EARLIER})
    trial.save(store, 2.0, EARLIER.conditions)
    history = store.trials("org/model")
    assert (history.report.at, history.drafts) == (2.0, {DRAFT: EARLIER})
    return {(cell["setup"], cell["kind"]): cell for cell in trial.report()["cells"]}


def test_a_busy_machine_gives_no_figure_and_no_recommendation(tmp_path: Path) -> None:
    samples = measured({AUTO: steady(1.8, 1.0)})
    places = [place for place in samples.by_place if place.configuration == AUTO]
    for place in places[:4]:  # of code: all three; of prose: one
        disturbed = replace(samples.by_place[place], others_s=1.0, machine_s=2.0)
        samples.by_place[place] = disturbed
    assert samples.busy(AUTO, Kind.CODE)
    assert samples.busy(AUTO, Kind.PROSE)
    assert samples.spread(AUTO, Kind.CODE) is None
    assert samples.undecided(configurations([DRAFT]), KINDS)
    cells = cells_of(samples, tmp_path)
    cell = cells[AUTO.name, "code"]
    assert (cell["busy"], cell["rate"], cell["speedup"]) == (True, None, None)
    assert not cells["off", "code"]["busy"]
    judged = verdict(samples, configurations([DRAFT]), KINDS)
    assert (judged.code, judged.configuration) == ("trial.verdict.busy", None)
    for place in places:
        later = Place(place.number + 3, DRAFT, place.kind, AUTO)
        samples.by_place[later] = answer(TOKENS, 1 / 1.8)
        samples.by_place[later.plain] = answer(TOKENS)
    assert not samples.busy(AUTO, Kind.CODE)  # three rounds more, undisturbed
    assert verdict(samples, configurations([DRAFT]), KINDS).configuration == AUTO


def test_a_noisy_trial_has_no_figure_and_no_recommendation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "NOISY_SPEEDUP", 4.0)
    samples = measured({AUTO: {Kind.CODE: [4.7, 8.2, 23.5], Kind.PROSE: [1.5, 1.6, 1.5]}})
    setups = configurations([DRAFT])
    assert samples.noise(AUTO, Kind.CODE) == pytest.approx(5.0)
    assert samples.noise(AUTO, Kind.PROSE) is None
    assert samples.undecided(setups, KINDS)
    judged = verdict(samples, setups, KINDS)
    assert (judged.code, judged.configuration, judged.factor) == ("trial.verdict.noisy", None, 5.0)
    assert "differ by 5.0×" in render_verdict(judged.to_json())
    cells = cells_of(samples, tmp_path)
    cell = cells[AUTO.name, "code"]
    assert (cell["noise"], cell["rate"], cell["speedup"]) == (5.0, None, None)
    assert cells[AUTO.name, "prose"]["speedup"]["median"] == 1.5


def test_plain_rounds_of_other_speeds_are_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = measured({AUTO: steady(1.8, 1.0)})
    samples.by_place[Place(0, DRAFT, Kind.CODE, PLAIN)] = answer(TOKENS, 2.0)
    samples.by_place[Place(0, DRAFT, Kind.CODE, AUTO)] = answer(TOKENS, 2.0 / 1.8)
    assert verdict(samples, configurations([DRAFT]), KINDS).configuration == AUTO
    monkeypatch.setattr(sample, "NOISY_RATE", 1.5)
    judged = verdict(samples, configurations([DRAFT]), KINDS)
    assert (judged.code, judged.factor) == ("trial.verdict.noisy", 2.0)


def test_the_first_difference_is_found() -> None:
    samples = Samples()
    samples.by_place[Place(0, DRAFT, Kind.CODE, PLAIN)] = answer((1, 2, 3))
    samples.by_place[Place(0, DRAFT, Kind.CODE, NGRAM)] = answer((1, 2, 3))
    samples.by_place[Place(0, DRAFT, Kind.CODE, AUTO)] = answer((1, 2, 4))
    samples.by_place[Place(0, DRAFT, Kind.CODE, ALONE)] = answer((1, 2))
    exactness = samples.exactness()
    assert (exactness.same, exactness.of) == (1, 3)
    assert exactness.first == (Place(0, DRAFT, Kind.CODE, AUTO), 2)


def test_a_drafter_that_failed_is_reported_and_nothing_compared_is_no_equality() -> None:
    plan = Plan("org/model", (DRAFT,), (Kind.CODE,), 100)
    trial = Trial(plan)
    assert trial.report()["exact"] is None
    assert trial.report()["draft_error"] is None
    trial.samples.by_place.update(measured({AUTO: {Kind.CODE: [1.1, 1.2]}}).by_place)
    assert trial.report()["exact"]["same"] == trial.report()["exact"]["of"] == 2
    assert trial.report()["draft_error"] is None
    place = Place(1, DRAFT, Kind.CODE, AUTO)
    failed = replace(answer(TOKENS), draft_error="RuntimeError: a test")
    trial.samples.by_place[place] = failed
    assert trial.report()["draft_error"]["params"] == {
        "failed": 1,
        "of": 4,
        "detail": "RuntimeError: a test",
    }


def test_every_round_runs_everything_once_and_begins_with_another_configuration() -> None:
    assert [configuration.name for configuration in configurations([])] == ["off", "ngram"]
    names = [configuration.name for configuration in configurations([DRAFT, OTHER])]
    drafted = [f"{kind}:org/{name}" for name in ("small", "tiny") for kind in ("draft", "auto")]
    assert names == ["off", "ngram", *drafted]
    first, second = visits([DRAFT, OTHER])
    assert PLAIN in first.configurations
    assert PLAIN in second.configurations
    for number in range(5):
        order = first.order(KINDS, number)
        assert set(order) == set(product(KINDS, first.configurations))
        assert len(order) == len(set(order))
        assert order[0][1] == first.configurations[number % 4]
    assert find_configuration("auto:org/tiny", [DRAFT, OTHER]) == TrialConfiguration("auto", OTHER)
    assert find_configuration("auto:org/none", [DRAFT, OTHER]) is None


def test_there_is_another_question_for_every_round() -> None:
    for kind in WRITTEN:
        texts = [question(kind, number).text for number in range(5)]
        assert len(set(texts)) == 5
        assert all(20 < len(text) < 1200 for text in texts)


def estimated(
    drafts: int = 1, *, rate: float | None = 20.0, loaded: bool = True, limit: int = 1 << 40
) -> Estimate:
    names = tuple(f"org/{number}" for number in range(drafts))
    return estimate(
        Plan("org/model", names, WRITTEN, 128),
        Weights(8_000_000_000, loaded),
        [Weights(1_000_000_000 * (number + 1), False) for number in range(drafts)],
        rate=rate,
        device="gpu",
        limit_bytes=limit,
    )


def test_an_estimate_grows_with_what_is_asked() -> None:
    one, two = estimated(1), estimated(2)
    assert 0 < one.least_s < one.most_s < two.most_s
    assert one.least_s == pytest.approx(3 * 4 * 4 * 128 / 20, rel=0.5)
    assert estimated(1, loaded=False).least_s > one.least_s
    assert not one.guessed
    assert estimated(rate=None).guessed


def test_memory_is_that_of_the_model_and_of_two_drafts_at_most() -> None:
    gb = 1_000_000_000
    assert [estimated(n).memory_bytes // gb for n in range(4)] == [0, 1, 3, 5]
    assert estimated(3, loaded=False).memory_bytes == 13 * gb
    assert estimated(3, limit=13 * gb).fits
    assert not estimated(3, limit=12 * gb).fits


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
