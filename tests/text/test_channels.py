from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.text.channels import ReasoningSplitter
from omlx.text.events import ReasoningDelta, TextDelta

MARKERS = ("<think>", "</think>")
FRAGMENTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "/", "think>", " ", "\n", "a", "b<", "</"])
)


def split(
    pieces: list[str], *, thinking: bool = False, markers: tuple[str, str] | None = MARKERS
) -> list[object]:
    machine = ReasoningSplitter(markers, thinking=thinking)
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
    assert split(list("\nwhy</think>\nso"), thinking=True) == [
        ReasoningDelta("why"),
        TextDelta("so"),
    ]


def test_without_markers_everything_is_content() -> None:
    assert split(list("<think>a</think>"), markers=None) == [TextDelta("<think>a</think>")]


def naive(text: str, *, thinking: bool) -> list[object]:
    """The rule, on the whole text at once."""
    if not thinking:
        if not text.lstrip().startswith("<think>"):
            return [TextDelta(text)] if text else []
        text = text.lstrip().removeprefix("<think>")
    thought, closed, rest = text.partition("</think>")
    thought = thought.strip() if closed else thought.lstrip()
    pieces = [ReasoningDelta(thought), TextDelta(rest.lstrip())]
    return [piece for piece in pieces if piece.text]


@given(fragments=FRAGMENTS, thinking=st.booleans())
def test_any_chunking_gives_what_the_rule_gives(fragments: list[str], thinking: bool) -> None:
    text = "".join(fragments)
    expected = naive(text, thinking=thinking)
    assert split([text], thinking=thinking) == expected
    assert split(fragments, thinking=thinking) == expected
    assert split(list(text), thinking=thinking) == expected
