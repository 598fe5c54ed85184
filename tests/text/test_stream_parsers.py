"""One property of every stream parser: its results depend on the text, not on how it is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

from omlx.text.calls.markup import CallMarkup
from omlx.text.calls.parser import ToolCallParser
from omlx.text.calls.repair import JsonRepair
from omlx.text.events import ReasoningDelta, TextDelta, ToolCallArguments
from omlx.text.filters import (
    ChannelSplitter,
    MarkerFilter,
    ReasoningSplitter,
    StopStringFilter,
    WrapperFilter,
)
from omlx.text.harmony import CALL, THOUGHT, HarmonySplitter
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


@pytest.mark.parametrize("name", STREAMS)
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
