from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.text.filters import MarkerFilter, StopStringFilter, StopStringMatcher, overlap

WORDS = st.text("ab<", max_size=12)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3)


def cut(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    cutter = StopStringFilter(stops)
    text = "".join([*map(cutter.feed, pieces), cutter.finish()])
    return text, cutter.matched


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first to end wins, the longest of those that end together."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(pieces=st.lists(WORDS), stops=STOPS)
def test_any_chunking_cuts_at_the_same_place(pieces: list[str], stops: list[str]) -> None:
    assert cut(pieces, stops) == naive("".join(pieces), stops)


@given(text=WORDS, marker=st.text("ab<", min_size=1, max_size=4))
def test_overlap_is_the_longest_proper_beginning(text: str, marker: str) -> None:
    expected = max(n for n in range(len(marker)) if text.endswith(marker[:n]))
    assert overlap(text, marker) == expected


@given(
    pieces=st.lists(WORDS),
    markers=st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_markers_are_dropped_however_the_text_is_cut(pieces: list[str], markers: list[str]) -> None:
    def dropped(chunks: Iterable[str]) -> str:
        machine = MarkerFilter(markers)
        return "".join([*map(machine.feed, chunks), machine.finish()])

    text = "".join(pieces)
    assert dropped(pieces) == dropped(text)


def test_what_is_dropped() -> None:
    machine = MarkerFilter(("<|open|>response<|sep|>", "<|close|>response<|sep|>"))
    assert machine.feed("<|open|>resp") == ""
    assert machine.feed("onse<|sep|>Hello <|cl") == "Hello "
    assert machine.feed("ick|> <|close|>response<|sep|>!<|") == "<|click|> !"
    assert machine.finish() == "<|"
    assert MarkerFilter(()).feed("a") == "a"


def test_a_possible_stop_is_held_back_and_given_back() -> None:
    cutter = StopStringFilter(["END"])
    assert cutter.feed("the E") == "the "
    assert cutter.feed("N") == ""
    assert cutter.feed("!") == "EN!"
    assert cutter.feed("E") == ""
    assert cutter.finish() == "E"


@given(
    text=st.text("abé< ", max_size=20),
    stops=st.lists(st.text("abé< ", min_size=1, max_size=3), max_size=3),
)
def test_engine_and_text_side_agree(bpe: TokenizerWrapper, text: str, stops: list[str]) -> None:
    tokens = bpe.encode("x" + text + "x", add_special_tokens=False)
    watcher = StopStringMatcher(bpe, stops)
    assert any(map(watcher.push, tokens)) == any(stop in "x" + text + "x" for stop in stops)
