from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.text.channels import Channels
from omlx.text.events import ReasoningDelta, TextDelta

MARKERS = ("<think>", "</think>")
FRAGMENTS = st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", " ", "\n", "a", "b<", "</"]))


def split(pieces: list[str], *, thinking: bool = False, markers: tuple[str, str] | None = MARKERS) -> list[object]:
    machine = Channels(markers, thinking=thinking)
    out = [piece for text in pieces for piece in machine.feed(text)] + machine.finish()
    return [kind("".join(piece.text for piece in run)) for kind, run in groupby(out, type)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", [TextDelta("plain")]),
        ("<think>\nwhy\n</think>\n\nso", [ReasoningDelta("why"), TextDelta("so")]),
        (" \n<think>why</think>so", [ReasoningDelta("why"), TextDelta("so")]),
        ("<think></think>so", [TextDelta("so")]),
        ("a <think> in prose", [TextDelta("a <think> in prose")]),
        ("<thin air", [TextDelta("<thin air")]),
        ("<thi", [TextDelta("<thi")]),
        ("  ", [TextDelta("  ")]),
        ("<think>cut </thi", [ReasoningDelta("cut </thi")]),
        ("<think>a</think>b</think>", [ReasoningDelta("a"), TextDelta("b</think>")]),
    ],
)
def test_splits(text: str, expected: list[object]) -> None:
    assert split([text]) == expected
    assert split(list(text)) == expected


def test_reasoning_that_the_prompt_has_opened() -> None:
    assert split(list("\nwhy</think>\nso"), thinking=True) == [ReasoningDelta("why"), TextDelta("so")]


def test_without_markers_everything_is_content() -> None:
    assert split(list("<think>a</think>"), markers=None) == [TextDelta("<think>a</think>")]


@given(fragments=FRAGMENTS, thinking=st.booleans())
def test_any_chunking_gives_the_same_events(fragments: list[str], thinking: bool) -> None:
    whole = split(["".join(fragments)], thinking=thinking)
    assert split(fragments, thinking=thinking) == whole
    assert split(list("".join(fragments)), thinking=thinking) == whole


@given(fragments=FRAGMENTS, thinking=st.booleans())
def test_nothing_but_markers_and_white_space_is_lost(fragments: list[str], thinking: bool) -> None:
    text = "".join(fragments)
    kept = "".join(piece.text for piece in split([text], thinking=thinking))  # type: ignore[attr-defined]
    for marker in MARKERS:
        if kept.count(marker) < text.count(marker):
            text = text.replace(marker, "", 1)
    assert "".join(kept.split()) == "".join(text.split())
