from __future__ import annotations

from omlx.errors import Reason
from omlx.records import DrafterStats, RequestStats, acceptance_rate, sum_drafters


def request(**drafters: DrafterStats) -> RequestStats:
    return RequestStats(
        prompt_n=5,
        cached_n=0,
        predicted_n=9,
        queue_ms=0.0,
        prompt_ms=1.0,
        predicted_ms=1.0,
        seed=1,
        drafters=drafters,
        speculation=Reason("spec.on"),
    )


def test_rounds_add_up_by_position() -> None:
    stats = DrafterStats()
    stats.add_round(3, 2, "tail_reject", "trim")
    stats.add_round(1, 1, "full", "none")
    stats.add_round(2, 0, "first_reject", "trim")
    assert stats == DrafterStats(
        proposed=6,
        accepted=3,
        rounds=3,
        accepted_at=[2, 1, 0],
        spans={"tail_reject": 1, "full": 1, "first_reject": 1},
        repairs={"trim": 2, "none": 1},
    )
    assert stats.acceptance_rate == 0.5


def test_a_sum_shares_nothing_with_its_parts() -> None:
    left = DrafterStats(3, 2, 1, [1, 1, 0], {"tail_reject": 1}, {"trim": 1}, 1.0, 2.0)
    right = DrafterStats(1, 1, 1, [1], {"full": 1}, {"trim": 2}, 0.5, 0.25)
    total = left + right
    assert total == DrafterStats(
        4, 3, 2, [2, 1, 0], {"full": 1, "tail_reject": 1}, {"trim": 3}, 1.5, 2.25
    )
    total.add_round(1, 1, "full", "trim")
    assert (left.accepted_at, right.spans) == ([1, 1, 0], {"full": 1})


def test_drafters_are_summed_by_name_over_answers() -> None:
    answers = [
        request(ngram=DrafterStats(proposed=4, accepted=1)),
        request(ngram=DrafterStats(proposed=4, accepted=3), draft=DrafterStats(proposed=2)),
        request(),
    ]
    assert sum_drafters(answers) == {
        "ngram": DrafterStats(proposed=8, accepted=4),
        "draft": DrafterStats(proposed=2),
    }
    assert [stats.acceptance_rate for stats in answers] == [0.25, 0.5, None]


def test_nothing_proposed_has_no_acceptance_rate() -> None:
    assert acceptance_rate(0, 0) is None
    assert DrafterStats().acceptance_rate is None
