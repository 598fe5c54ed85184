"""Points that a benchmark measures, their order, and prompts of exactly the wanted length."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from omlx.engine.piece import Layout, ModelRoom
from omlx.measure import sample
from omlx.measure.benchmark import (
    ANSWER_TOKENS,
    ROUNDS,
    Benchmark,
    Figures,
    Mode,
    Place,
    Point,
    choose_points,
    places,
    prompt_lengths,
)
from omlx.measure.sample import first_difference
from omlx.measure.texts import prompts_of_length

MIB = 1 << 20
BOTH = (Mode.PLAIN, Mode.DRAFTED)


def room(context: int = 200_000, rows: int = 8, free_bytes: int | None = None) -> ModelRoom:
    return ModelRoom(context, rows, Layout(1024), free_bytes)


def test_everything_is_measured_where_there_is_room() -> None:
    points, left_out = choose_points(room(), 131_072)
    assert (len(points), left_out) == (12, {})
    assert max(points) == Point(131_072, 4)
    assert len(choose_points(room(), 16_384)[0]) == 6


def test_lengths_are_cut_to_the_context_and_to_the_longest() -> None:
    assert prompt_lengths(4096) == [1024, 4096 - ANSWER_TOKENS]
    assert prompt_lengths(200_000, 16_384) == [1024, 4096, 16_384]
    assert prompt_lengths(512) == [512 - ANSWER_TOKENS]
    points, left_out = choose_points(room(context=4096), 131_072)
    assert points == [Point(1024, 1), Point(1024, 4), Point(4032, 1), Point(4032, 4)]
    assert left_out == {}


def test_rows_and_memory_bound_it() -> None:
    def reasons(**bounds: int) -> dict[Point, str]:
        left_out = choose_points(room(**bounds), 4096)[1]
        return {point: reason.code for point, reason in left_out.items()}

    assert set(reasons(context=ANSWER_TOKENS).values()) == {"benchmark.context"}
    assert set(reasons(rows=3)) == {Point(1024, 4), Point(4096, 4)}
    # 4 rows of 4,160 tokens need more than 16 MiB, one needs little more than 4 MiB
    assert reasons(free_bytes=16 * MIB) == {Point(4096, 4): "benchmark.memory"}
    assert len(reasons(free_bytes=MIB)) == 4


def test_each_round_reads_its_prompt_once_and_modes_take_turns() -> None:
    points = [Point(1024, 1), Point(1024, 4), Point(16_384, 1)]
    order = list(places(points, BOTH))
    assert len(order) == len(set(order)) == ROUNDS * 4 + 2
    cold = [place for place in order if place.cold]
    assert [(place.point.tokens, place.mode) for place in cold] == [
        (1024, Mode.PLAIN),
        (1024, Mode.DRAFTED),
        (1024, Mode.PLAIN),
        (16_384, Mode.PLAIN),
    ]
    assert all(place.point.streams == 1 for place in cold)


BEGIN = 256


async def encode(text: str, *, special: bool) -> list[int]:
    """A byte is a token."""
    return [BEGIN] * special + list(text.encode())


@pytest.mark.parametrize("tokens", [1024, 20_000])
def test_streams_share_all_but_the_end(tokens: int) -> None:
    prompts = asyncio.run(prompts_of_length(encode, "a", tokens, 4))
    assert [len(prompt) for prompt in prompts] == [tokens] * 4
    assert len(set(prompts)) == 4
    apart = [first_difference(prompts[0], other) for other in prompts[1:]]
    assert all(place is not None and tokens - 200 < place for place in apart)
    assert [prompt.count(BEGIN) for prompt in prompts] == [1] * 4


def test_another_name_begins_otherwise() -> None:
    (one,) = asyncio.run(prompts_of_length(encode, "a", 1024, 1))
    (other,) = asyncio.run(prompts_of_length(encode, "b", 1024, 1))
    assert first_difference(one, other) == 3


def test_a_row_measured_on_a_busy_machine_has_no_figures() -> None:
    benchmark, short, long = Benchmark("org/model", 4096), Point(1024, 1), Point(4096, 1)
    benchmark.points = [short, long]
    for number in range(3):
        for mode in BOTH:
            quiet = Figures(50.0, 1 << 30, 100.0, 10.0)
            disturbed = replace(quiet, decode=9.0, busy=number > 0)
            benchmark.figures[Place(short, mode, number)] = disturbed
            benchmark.figures[Place(long, mode, number)] = replace(quiet, busy=number == 1)
    first, second = benchmark.report()["rows"]
    assert (first["busy"], first["plain"], first["prefill"]) == (True, None, None)
    assert first["memory_bytes"] == 1 << 30
    assert (second["busy"], second["plain"]["median"]) == (False, 50.0)
    assert first["verdict"]["code"] == "benchmark.verdict.busy"
    assert second["verdict"]["code"] == "benchmark.verdict.even"


def row(plain: list[float], drafted: list[float]) -> dict[str, Any]:
    benchmark, point = Benchmark("org/model", 1024), Point(1024, 4)
    benchmark.points = [point]
    for mode, rates in zip(BOTH, (plain, drafted), strict=True):
        for number, rate in enumerate(rates):
            benchmark.figures[Place(point, mode, number)] = Figures(rate, 1 << 30)
    (record,) = benchmark.report()["rows"]
    return dict(record)


@pytest.mark.parametrize(
    ("plain", "drafted", "effect"),
    [
        ([100.0, 101.0, 99.0], [150.0, 160.0, 140.0], "faster"),
        ([100.0, 101.0, 99.0], [50.0, 60.0, 40.0], "slower"),
        ([100.0, 101.0, 99.0], [101.0, 100.0, 102.0], "even"),
        ([100.0, 101.0, 99.0], [90.0, 140.0, 150.0], "unclear"),
        ([100.0], [150.0], "once"),
        ([87.0, 143.0, 234.0], [35.0, 38.5, 92.0], "noisy"),
        ([100.0, 101.0, 99.0], [30.0, 100.0, 150.0], "noisy"),
    ],
)
def test_each_row_has_a_verdict(
    plain: list[float], drafted: list[float], effect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "NOISY_RATE", 1.5)
    monkeypatch.setattr(sample, "NOISY_SPEEDUP", 4.0)
    record = row(plain, drafted)
    assert record["verdict"]["code"] == f"benchmark.verdict.{effect}"
    assert (record["plain"] is None) is (record["drafted"] is None) is (effect == "noisy")


def test_without_drafts_there_is_no_verdict() -> None:
    assert row([100.0, 101.0], [])["verdict"] is None
