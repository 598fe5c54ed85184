"""Points that a benchmark measures, their order, and prompts of exactly the wanted length."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from omlx.engine.piece import Layout, Room
from omlx.measure.benchmark import (
    ROUNDS,
    Benchmark,
    Figures,
    Mode,
    Place,
    Point,
    choose_points,
    places,
)
from omlx.measure.sample import first_difference
from omlx.measure.texts import prompts_of_length

MIB = 1 << 20
BOTH = (Mode.PLAIN, Mode.DRAFTED)


def room(context: int = 200_000, rows: int = 8, free_bytes: int | None = None) -> Room:
    return Room(context, rows, Layout(1024), free_bytes)


def test_everything_is_measured_where_there_is_room() -> None:
    points, left_out = choose_points(room(), 131_072)
    assert (len(points), left_out) == (12, {})
    assert max(points) == Point(131_072, 4)
    assert len(choose_points(room(), 16_384)[0]) == 6


def test_context_rows_and_memory_bound_it() -> None:
    def reasons(**bounds: int) -> dict[Point, str]:
        left_out = choose_points(room(**bounds), 4096)[1]
        return {point: reason.code for point, reason in left_out.items()}

    assert reasons(context=4096) == {
        Point(4096, 1): "benchmark.context",
        Point(4096, 4): "benchmark.context",
    }
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
