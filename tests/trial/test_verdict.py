"""From figures to a sentence: what is recommended, what counts as a difference, when another round is worth it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from omlx.trial.configurations import NGRAM, PLAIN, Setup, find_setup, setups, visits
from omlx.trial.render_verdict import listed, say
from omlx.trial.report import _verdict
from omlx.trial.samples import Difference, Gain, Place, Sample, Samples, Spread
from omlx.trial.texts import WRITTEN, Kind, question
from omlx.trial.verdict import Verdict, verdict

DRAFT, OTHER = "org/small", "org/tiny"
AUTO, ALONE = Setup("auto", DRAFT), Setup("draft", DRAFT)
KINDS = (Kind.CODE, Kind.PROSE)
TOKENS = tuple(range(101))


def measured(ratios: Mapping[Setup, Mapping[Kind, Sequence[float]]]) -> Samples:
    """Samples in which plain decoding does 100 tokens a second, and everything else what it is said to do."""
    samples = Samples()
    for setup, by_kind in ratios.items():
        for kind, values in by_kind.items():
            for number, ratio in enumerate(values):
                place = Place(number, DRAFT, kind, setup)
                samples.add(place.plain, Sample(TOKENS, 1000.0))
                samples.add(place, Sample(TOKENS, 1000.0 / ratio))
    return samples


def judged(ratios: Mapping[Setup, Mapping[Kind, Sequence[float]]]) -> Verdict:
    return verdict(measured(ratios), setups([DRAFT]), KINDS)


def same(code: float, prose: float) -> dict[Kind, list[float]]:
    return {
        Kind.CODE: [code, code * 1.02, code * 0.99],
        Kind.PROSE: [prose, prose * 1.01, prose * 0.98],
    }


def test_a_draft_that_pays_is_named_with_what_it_gains() -> None:
    found = judged({NGRAM: same(1.3, 1.0), ALONE: same(1.8, 1.1), AUTO: same(1.8, 1.12)})
    assert (found.code, found.setup) == ("trial.verdict.auto", AUTO)
    assert (
        say(_verdict(found))
        == "Draft org/small makes code edits 1.8× and prose 1.1× faster; keep auto."
    )


def test_a_draft_that_is_no_better_than_lookups_is_not_needed() -> None:
    found = judged({NGRAM: same(1.8, 1.0), ALONE: same(1.8, 1.0), AUTO: same(1.84, 1.0)})
    assert (found.code, found.setup) == ("trial.verdict.ngram", NGRAM)
    assert found.setup is not None
    assert found.setup.changes == {"speculation": "ngram", "draft_model": None}


def test_the_model_alone_is_recommended_only_where_it_clearly_beats_auto() -> None:
    assert judged({AUTO: same(1.5, 1.2), ALONE: same(1.53, 1.2)}).setup == AUTO
    found = judged({AUTO: same(1.5, 1.2), ALONE: same(1.9, 1.6)})
    assert (found.code, found.setup) == ("trial.verdict.draft", ALONE)


def test_what_becomes_slower_is_said_as_well() -> None:
    found = judged({AUTO: same(2.0, 0.8)})
    assert found.code == "trial.verdict.auto_but"
    assert say(_verdict(found)) == (
        "Draft org/small makes code edits 2.0× faster, but prose 0.8× as fast; keep auto."
    )


@pytest.mark.parametrize("values", [[0.8, 1.3, 1.6], [0.99, 1.0, 1.02], [1.01, 1.03, 1.04]])
def test_a_spread_that_covers_one_or_a_gain_that_nobody_notices_is_no_clear_difference(
    values: list[float],
) -> None:
    found = judged({setup: dict.fromkeys(KINDS, values) for setup in (NGRAM, ALONE, AUTO)})
    assert (found.code, found.setup) == ("trial.verdict.none", None)


def test_where_everything_loses_speculation_is_better_off() -> None:
    found = judged({NGRAM: same(0.9, 0.9), ALONE: same(0.5, 0.4), AUTO: same(0.8, 0.8)})
    assert (found.code, found.setup) == ("trial.verdict.off", PLAIN)
    assert [round(change.speedup, 1) for change in found.losses] == [0.9, 0.9]


def test_nothing_measured_is_nothing_said() -> None:
    assert verdict(Samples(), setups([DRAFT]), KINDS) == Verdict("trial.verdict.none")
    silent = Samples()
    for setup in setups([DRAFT]):
        silent.add(
            Place(0, DRAFT, Kind.CODE, setup), Sample((1,), 0.0)
        )  # answers that ended at once
    assert verdict(silent, setups([DRAFT]), KINDS).code == "trial.verdict.none"


def test_noise_alone_never_recommends_a_change() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        ratios = {
            setup: {kind: [rng.uniform(0.95, 1.05) for _ in range(5)] for kind in KINDS}
            for setup in (NGRAM, ALONE, AUTO)
        }
        assert judged(ratios).setup is None, seed


def test_of_five_samples_the_two_at_the_ends_do_not_count() -> None:
    assert Spread.of([1.2, 1.5, 1.4]) == Spread(1.2, 1.4, 1.5)
    assert Spread.of([1.2, 0.2, 1.4, 1.3, 9.0]) == Spread(1.2, 1.3, 1.4)
    assert Spread.of([1.2, 0.2, 1.4, 1.3, 9.0]).gain is Gain.FASTER
    assert Spread.of([2.0]).gain is Gain.FASTER


def test_another_round_is_worth_it_only_while_something_is_unclear() -> None:
    decided = measured({AUTO: same(1.8, 1.0)})
    assert not decided.undecided(setups([DRAFT]), KINDS)
    unclear = measured({AUTO: {Kind.CODE: [0.9, 1.4, 1.5]}})
    assert unclear.undecided(setups([DRAFT]), KINDS)


def test_tokens_that_differ_are_found_where_they_do() -> None:
    samples = Samples()
    samples.add(Place(0, DRAFT, Kind.CODE, PLAIN), Sample((1, 2, 3), 10))
    samples.add(Place(0, DRAFT, Kind.CODE, NGRAM), Sample((1, 2, 3), 10))
    samples.add(Place(0, DRAFT, Kind.CODE, AUTO), Sample((1, 2, 4), 10))
    samples.add(Place(0, DRAFT, Kind.CODE, ALONE), Sample((1, 2), 10))
    found = samples.exactness()
    assert (found.same, found.of) == (1, 3)
    assert found.first == Difference(Kind.CODE, 0, AUTO.name, 2)


def test_every_round_runs_everything_once_and_begins_elsewhere() -> None:
    assert [setup.name for setup in setups([])] == ["off", "ngram"]
    names = [setup.name for setup in setups([DRAFT, OTHER])]
    assert names == [
        "off",
        "ngram",
        "draft:org/small",
        "auto:org/small",
        "draft:org/tiny",
        "auto:org/tiny",
    ]
    first, second = visits([DRAFT, OTHER])
    assert PLAIN in first.setups
    assert PLAIN in second.setups
    for number in range(5):
        order = first.order(KINDS, number)
        assert sorted(map(str, order)) == sorted(
            str((kind, setup)) for kind in KINDS for setup in first.setups
        )
        assert order[0][1] == first.setups[number % 4]
    assert find_setup("auto:org/tiny", [DRAFT, OTHER]) == Setup("auto", OTHER)
    assert find_setup("auto:org/none", [DRAFT, OTHER]) is None


def test_there_is_another_question_for_every_round() -> None:
    for kind in WRITTEN:
        texts = [question(kind, number).text for number in range(5)]
        assert len(set(texts)) == 5
        assert all(20 < len(text) < 1200 for text in texts)


def test_lists_read_as_lists() -> None:
    assert [listed(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
