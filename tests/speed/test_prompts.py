"""Prompts of exactly the wanted length, which share all but their ends."""

from __future__ import annotations

import asyncio

import pytest

from omlx.measure.exactness import first_difference
from omlx.speed.prompts import Prompts

BEGIN = 256


async def encode(text: str, *, special: bool) -> list[int]:
    """A byte is a token."""
    return [BEGIN] * special + list(text.encode())


@pytest.mark.parametrize("tokens", [1024, 20_000])
def test_streams_share_all_but_the_end(tokens: int) -> None:
    prompts = asyncio.run(Prompts(encode).make("a", tokens, 4))
    assert [len(prompt) for prompt in prompts] == [tokens] * 4
    assert len(set(prompts)) == 4
    apart = [first_difference(prompts[0], other) for other in prompts[1:]]
    assert all(place is not None and tokens - 200 < place for place in apart)
    assert [prompt.count(BEGIN) for prompt in prompts] == [1] * 4


def test_another_name_begins_otherwise() -> None:
    prompts = Prompts(encode)
    (one,), (other,) = (
        asyncio.run(prompts.make("a", 1024, 1)),
        asyncio.run(prompts.make("b", 1024, 1)),
    )
    assert first_difference(one, other) == 3
