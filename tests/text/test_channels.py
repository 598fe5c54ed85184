from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

from omlx.text.events import ReasoningDelta, TextDelta
from omlx.text.filters import ChannelSplitter, Piece, ReasoningSplitter, Splitter

MARKERS = ("<think>", "</think>")
FRAGMENTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "/", "think>", " ", "\n", "a", "b<", "</"])
)


def parse(splitter: Splitter, chunks: Iterable[str]) -> list[Piece]:
    pieces = []
    for chunk in chunks:
        pieces += splitter.feed(chunk)
    return pieces + splitter.finish()


def split(
    pieces: list[str], *, thinking: bool = False, markers: tuple[str, str] | None = MARKERS
) -> list[object]:
    parsed = parse(ReasoningSplitter(markers, thinking=thinking), pieces)
    return [kind("".join(piece.text for piece in run)) for kind, run in groupby(parsed, type)]


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
    if not thinking and text.lstrip().startswith("</think>"):
        text, thinking = text.lstrip(), True
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


CALL = '<atem:function_calls>\n<atem:invoke name="look">\n</atem:invoke>\n</atem:function_calls>'
NEXT = "<|eom|><|start|>assistant "
WHOLE = (
    f"to=self<|message|>Hm. <|eo{NEXT}to=look<|message|>{CALL}"
    f"{NEXT}to=user<|message|>It <rains.<|eot|>"
)


def read(chunks: list[str]) -> tuple[str, str]:
    """Return reasoning and content."""
    splitter = ChannelSplitter(RESPONSE_FORMAT["initial_state"], RESPONSE_FORMAT["transitions"])
    pieces = parse(splitter, chunks)
    reasoning = [piece.text for piece in pieces if isinstance(piece, ReasoningDelta)]
    content = [piece.text for piece in pieces if isinstance(piece, TextDelta)]
    return "".join(reasoning), "".join(content)


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=8))
def test_channels_do_not_depend_on_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    chunks = [WHOLE[a:b] for a, b in pairwise(edges)]
    assert read(chunks) == ("Hm. <|eo", f"{CALL}It <rains.")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("No header at all.", ("", "No header at all.")),
        ("to=self<|message|>cut o", ("cut o", "")),
        ("to=self<|message|>a<|eo", ("a<|eo", "")),
        (f"to=self<|message|>a{NEXT}to=us", ("a", "")),
        ("to=commentary<|message|>I look.", ("", "I look.")),
        ("", ("", "")),
    ],
)
def test_channels_that_are_cut_off(text: str, found: tuple[str, str]) -> None:
    assert read([text]) == found
    assert read(list(text)) == found
