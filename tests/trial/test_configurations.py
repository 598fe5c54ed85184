"""The configurations of a trial, their order, and the questions of each round."""

from __future__ import annotations

from itertools import product

from omlx.trial.configurations import (
    PLAIN,
    TrialConfiguration,
    configurations,
    find_configuration,
    visits,
)
from omlx.trial.texts import WRITTEN, question
from tests.trial.sample_sets import DRAFT, KINDS, OTHER


def test_every_round_runs_everything_once_and_begins_with_another_configuration() -> None:
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
