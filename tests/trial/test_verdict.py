"""From figures to a sentence: what is recommended, what counts as a difference, when another round is worth it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from omlx.measure.exactness import Difference
from omlx.measure.sample import Sample
from omlx.measure.spread import Gain, Spread
from omlx.trial.configurations import (
    NGRAM,
    PLAIN,
    TrialConfiguration,
    configurations,
    find_configuration,
    visits,
)
from omlx.trial.render_verdict import join_list, render_verdict
from omlx.trial.report import _verdict
from omlx.trial.samples import Place, Samples
from omlx.trial.texts import WRITTEN, Kind, question
from omlx.trial.verdict import Verdict, verdict

DRAFT, OTHER = "org/small", "org/tiny"
AUTO, ALONE = TrialConfiguration("auto", DRAFT), TrialConfiguration("draft", DRAFT)
KINDS = (Kind.CODE, Kind.PROSE)
TOKENS = tuple(range(101))


def answer(tokens: tuple[int, ...], seconds: float = 1.0) -> Sample:
    return Sample((tokens,), len(tokens) - 1, seconds)


def measured(ratios: Mapping[TrialConfiguration, Mapping[Kind, Sequence[float]]]) -> Samples:
    """Samples in which plain decoding does 100 tokens a second, and everything else what it is said to do."""
    samples = Samples()
    for configuration, by_kind in ratios.items():
        for kind, values in by_kind.items():
            for number, ratio in enumerate(values):
                place = Place(number, DRAFT, kind, configuration)
                samples.add(place.plain, answer(TOKENS, 1.0))
                samples.add(place, answer(TOKENS, 1.0 / ratio))
    return samples


def judged(ratios: Mapping[TrialConfiguration, Mapping[Kind, Sequence[float]]]) -> Verdict:
    return verdict(measured(ratios), configurations([DRAFT]), KINDS)


def same(code: float, prose: float) -> dict[Kind, list[float]]:
    return {
        Kind.CODE: [code, code * 1.02, code * 0.99],
        Kind.PROSE: [prose, prose * 1.01, prose * 0.98],
    }


def test_a_draft_that_pays_is_named_with_what_it_gains() -> None:
    found = judged({NGRAM: same(1.3, 1.0), ALONE: same(1.8, 1.1), AUTO: same(1.8, 1.12)})
    assert (found.code, found.configuration) == ("trial.verdict.auto", AUTO)
    assert (
        render_verdict(_verdict(found))
        == "Faster with draft model org/small: code edits 1.8× and prose 1.1×. Keep auto."
    )


def test_a_draft_that_is_no_better_than_lookups_is_not_needed() -> None:
    found = judged({NGRAM: same(1.8, 1.0), ALONE: same(1.8, 1.0), AUTO: same(1.84, 1.0)})
    assert (found.code, found.configuration) == ("trial.verdict.ngram", NGRAM)
    assert found.configuration is not None
    assert found.configuration.changes == {"speculation": "ngram", "draft_model": None}


def test_the_model_alone_is_recommended_only_where_it_clearly_beats_auto() -> None:
    assert judged({AUTO: same(1.5, 1.2), ALONE: same(1.53, 1.2)}).configuration == AUTO
    found = judged({AUTO: same(1.5, 1.2), ALONE: same(1.9, 1.6)})
    assert (found.code, found.configuration) == ("trial.verdict.draft", ALONE)


def test_what_becomes_slower_is_said_as_well() -> None:
    found = judged({AUTO: same(2.0, 0.8)})
    assert found.code == "trial.verdict.auto_but"
    assert render_verdict(_verdict(found)) == (
        "Faster with draft model org/small: code edits 2.0×. Slower: prose 0.8×. Keep auto."
    )


@pytest.mark.parametrize("values", [[0.8, 1.3, 1.6], [0.99, 1.0, 1.02], [1.01, 1.03, 1.04]])
def test_a_spread_that_covers_one_or_a_gain_that_nobody_notices_is_no_clear_difference(
    values: list[float],
) -> None:
    found = judged(
        {configuration: dict.fromkeys(KINDS, values) for configuration in (NGRAM, ALONE, AUTO)}
    )
    assert (found.code, found.configuration) == ("trial.verdict.none", None)


def test_where_everything_loses_speculation_is_better_off() -> None:
    found = judged({NGRAM: same(0.9, 0.9), ALONE: same(0.5, 0.4), AUTO: same(0.8, 0.8)})
    assert (found.code, found.configuration) == ("trial.verdict.off", PLAIN)
    assert [round(change.speedup, 1) for change in found.losses] == [0.9, 0.9]


def test_nothing_measured_is_nothing_said() -> None:
    assert verdict(Samples(), configurations([DRAFT]), KINDS) == Verdict("trial.verdict.none")
    silent = Samples()
    for configuration in configurations([DRAFT]):
        silent.add(
            Place(0, DRAFT, Kind.CODE, configuration), answer((1,), 0.0)
        )  # answers that ended at once
    assert verdict(silent, configurations([DRAFT]), KINDS).code == "trial.verdict.none"


def test_noise_alone_never_recommends_a_change() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        ratios = {
            configuration: {kind: [rng.uniform(0.95, 1.05) for _ in range(5)] for kind in KINDS}
            for configuration in (NGRAM, ALONE, AUTO)
        }
        assert judged(ratios).configuration is None, seed


def test_of_five_samples_the_two_at_the_ends_do_not_count() -> None:
    assert Spread.of([1.2, 1.5, 1.4]) == Spread(1.2, 1.4, 1.5)
    assert Spread.of([1.2, 0.2, 1.4, 1.3, 9.0]) == Spread(1.2, 1.3, 1.4)
    assert Spread.of([1.2, 0.2, 1.4, 1.3, 9.0]).gain is Gain.FASTER
    assert Spread.of([2.0]).gain is Gain.FASTER


def test_another_round_is_worth_it_only_while_something_is_unclear() -> None:
    decided = measured({AUTO: same(1.8, 1.0)})
    assert not decided.undecided(configurations([DRAFT]), KINDS)
    unclear = measured({AUTO: {Kind.CODE: [0.9, 1.4, 1.5]}})
    assert unclear.undecided(configurations([DRAFT]), KINDS)


def test_tokens_that_differ_are_found_where_they_do() -> None:
    samples = Samples()
    samples.add(Place(0, DRAFT, Kind.CODE, PLAIN), answer((1, 2, 3)))
    samples.add(Place(0, DRAFT, Kind.CODE, NGRAM), answer((1, 2, 3)))
    samples.add(Place(0, DRAFT, Kind.CODE, AUTO), answer((1, 2, 4)))
    samples.add(Place(0, DRAFT, Kind.CODE, ALONE), answer((1, 2)))
    found = samples.exactness()
    assert (found.same, found.of) == (1, 3)
    assert found.first == Difference(Place(0, DRAFT, Kind.CODE, AUTO), 2)


def test_every_round_runs_everything_once_and_begins_elsewhere() -> None:
    assert [configuration.name for configuration in configurations([])] == ["off", "ngram"]
    names = [configuration.name for configuration in configurations([DRAFT, OTHER])]
    assert names == [
        "off",
        "ngram",
        "draft:org/small",
        "auto:org/small",
        "draft:org/tiny",
        "auto:org/tiny",
    ]
    first, second = visits([DRAFT, OTHER])
    assert PLAIN in first.configurations
    assert PLAIN in second.configurations
    for number in range(5):
        order = first.order(KINDS, number)
        assert sorted(map(str, order)) == sorted(
            str((kind, configuration)) for kind in KINDS for configuration in first.configurations
        )
        assert order[0][1] == first.configurations[number % 4]
    assert find_configuration("auto:org/tiny", [DRAFT, OTHER]) == TrialConfiguration("auto", OTHER)
    assert find_configuration("auto:org/none", [DRAFT, OTHER]) is None


def test_there_is_another_question_for_every_round() -> None:
    for kind in WRITTEN:
        texts = [question(kind, number).text for number in range(5)]
        assert len(set(texts)) == 5
        assert all(20 < len(text) < 1200 for text in texts)


def test_lists_read_as_lists() -> None:
    assert [join_list(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
