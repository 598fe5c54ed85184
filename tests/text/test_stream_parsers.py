"""Stream parsers: results depend on the text, not on how it is cut; filters, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.text.calls.markup import CallMarkup
from omlx.text.calls.parser import ToolCallParser
from omlx.text.calls.repair import JsonRepair
from omlx.text.events import ReasoningDelta, TextDelta, ToolCallArguments
from omlx.text.filters import (
    ChannelSplitter,
    MarkerFilter,
    ReasoningSplitter,
    StopStringFilter,
    StopStringMatcher,
    WrapperFilter,
    overlap,
)
from omlx.text.harmony import CALL, THOUGHT, HarmonySplitter
from tests.lanes import few
from tests.text.call_matrix import FORMATS, LOOK, TOOLS, WEATHER, written

Results = list[Any]
TAGS: Final = ("<think>", "</think>", "<", "/", "think>", " ", "\n", "a", "b<", "</")
JSON: Final = (
    *("{", "}", "[", "]", ":", ",", '"', "'", "\\", "\n", " ", "a", "True", "1", "-"),
    *("\\u", "d83d", "\\ude00", "</t>", '"a": '),
)
HEADER: Final = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
HARMONY: Final = (
    *(*THOUGHT, HEADER, "<|channel|>final<|message|>", "<|start|>assistant", "<|call|>", "<|end|>"),
    *(CALL, "look", '{"at": "é <|x|> to=functions.look"}', r'{"a": "\\ <|end|>"', '"', "}", "é "),
)
MUSE: Final = ("to=self", "to=user", "<|message|>", "<|eom|>", "<|start|>assistant ", "<|e", "a ")


@dataclass(frozen=True)
class Stream:
    """A parser, and fragments of what it reads."""

    make: Callable[[], Any]
    fragments: Sequence[str]


def _call_fragments(name: str) -> Sequence[str]:
    form = FORMATS[name]
    call = written(form, WEATHER)
    half = len(call) // 2
    begins = (form.start, form.end, call, call[:half], call[half:], written(form, LOOK, WEATHER))
    return (*begins, *form.bare, " ", "\n", "a<", "}", '{"', '{"name": "look", "arguments": ')


STREAMS: Final = {
    "stop strings": Stream(lambda: StopStringFilter(("b<", "<think>", "a\n")), TAGS),
    "markers": Stream(lambda: MarkerFilter(("<think>", "</think>", "b")), TAGS),
    "wrapper": Stream(lambda: WrapperFilter(("<think>", "</think>")), TAGS),
    "wrapper without an end": Stream(lambda: WrapperFilter(("<think>", "")), TAGS),
    "reasoning": Stream(lambda: ReasoningSplitter(("<think>", "</think>")), TAGS),
    "reasoning that is open": Stream(
        lambda: ReasoningSplitter(("<think>", "</think>"), thinking=True, ends=("b<",)), TAGS
    ),
    "reasoning that repeats": Stream(
        lambda: ReasoningSplitter(("<think>", "</think>"), repeats=True), TAGS
    ),
    "channels": Stream(
        lambda: ChannelSplitter(RESPONSE_FORMAT["initial_state"], RESPONSE_FORMAT["transitions"]),
        MUSE,
    ),
    "harmony": Stream(lambda: HarmonySplitter(TOOLS), HARMONY),
    "harmony without functions": Stream(lambda: HarmonySplitter(()), HARMONY),
    "JSON": Stream(JsonRepair, JSON),
    "JSON with a terminator": Stream(lambda: JsonRepair("</t>"), JSON),
    **{
        f"calls of {name}": Stream(
            lambda form=form: ToolCallParser(CallMarkup(form, TOOLS)),  # type: ignore[misc]
            _call_fragments(name),
        )
        for name, form in FORMATS.items()
    },
}


def results(parser: Any, pieces: Iterable[str]) -> Results:
    """Return texts and events, neighbours of one kind joined, and the text after the end."""
    found: Results = []
    rest = ""
    for piece in pieces:
        if getattr(parser, "ended", False):
            rest += piece
            continue
        found += parser.feed(piece)
        rest = getattr(parser, "rest", "")
    if not getattr(parser, "ended", False):
        found += parser.finish()
    return [*_joined(found), rest, getattr(parser, "matched", None)]


def _joined(found: Iterable[Any]) -> Iterable[Any]:
    joined: Results = []
    for each in found:
        last = joined[-1] if joined else None
        if type(last) is not type(each):
            joined.append(each)
        elif isinstance(each, str):
            joined[-1] += each
        elif isinstance(each, TextDelta | ReasoningDelta) or (
            isinstance(each, ToolCallArguments) and last.index == each.index
        ):
            joined[-1] = replace(each, text=last.text + each.text)
        else:
            joined.append(each)
    return joined


@pytest.mark.parametrize("name", few(STREAMS, every=3))
@given(data=st.data())
def test_results_do_not_depend_on_how_a_text_is_cut(name: str, data: st.DataObject) -> None:
    stream = STREAMS[name]
    parts = data.draw(st.lists(st.sampled_from(stream.fragments), max_size=10))
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    pieces = [text[start:end] for start, end in pairwise(sorted({0, *cuts, len(text)}))]
    whole = results(stream.make(), [text])
    for cut in (parts, pieces, list(text)):
        assert results(stream.make(), cut) == whole


WORDS = st.text("ab<", max_size=12)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first to end wins, the longest of those that end together."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(pieces=st.lists(WORDS), stops=STOPS)
def test_a_text_is_cut_where_its_first_stop_ends(pieces: list[str], stops: list[str]) -> None:
    cutter = StopStringFilter(stops)
    text = "".join([*map(cutter.feed, pieces), cutter.finish()])
    assert (text, cutter.matched) == naive("".join(pieces), stops)


@given(text=WORDS, marker=st.text("ab<", min_size=1, max_size=4))
def test_overlap_is_the_longest_proper_beginning(text: str, marker: str) -> None:
    expected = max(n for n in range(len(marker)) if text.endswith(marker[:n]))
    assert overlap(text, marker) == expected


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


MARKERS = ("<think>", "</think>")
FRAGMENTS = st.lists(st.sampled_from(TAGS))


def split(
    *pieces: str, thinking: bool = False, markers: tuple[str, str] | None = MARKERS
) -> Results:
    return results(ReasoningSplitter(markers, thinking=thinking), pieces)[:-2]


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
    assert split(text) == expected


def test_without_markers_everything_is_content() -> None:
    assert split("<think>a</think>", markers=None) == [TextDelta("<think>a</think>")]


def naive_split(text: str, *, thinking: bool) -> list[object]:
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
def test_a_text_is_split_as_the_rule_has_it(fragments: list[str], thinking: bool) -> None:
    text = "".join(fragments)
    for pieces in ([text], fragments, text):
        assert split(*pieces, thinking=thinking) == naive_split(text, thinking=thinking)


KINDS: Final = (ReasoningDelta, TextDelta)
CALL = '<atem:function_calls>\n<atem:invoke name="look">\n</atem:invoke>\n</atem:function_calls>'
NEXT = "<|eom|><|start|>assistant "
WHOLE = (
    f"to=self<|message|>Hm. <|eo{NEXT}to=look<|message|>{CALL}"
    f"{NEXT}to=user<|message|>It <rains.<|eot|>"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (WHOLE, ("Hm. <|eo", f"{CALL}It <rains.")),
        ("No header at all.", ("", "No header at all.")),
        ("to=self<|message|>cut o", ("cut o", "")),
        ("to=self<|message|>a<|eo", ("a<|eo", "")),
        (f"to=self<|message|>a{NEXT}to=us", ("a", "")),
        ("to=commentary<|message|>I look.", ("", "I look.")),
        ("", ("", "")),
    ],
)
def test_channels(text: str, found: tuple[str, str]) -> None:
    for cut in ([text], text):
        pieces = results(STREAMS["channels"].make(), cut)[:-2]
        thought, said = ("".join(p.text for p in pieces if isinstance(p, t)) for t in KINDS)
        assert (thought, said) == found
