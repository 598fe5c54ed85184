"""Calls from tokens: through detokenizer, stop strings and channels, with the openings and ends
that requests force.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import BadRequest
from omlx.text.calls import markup
from omlx.text.events import (
    Finish,
    HiddenLogprobs,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from omlx.text.output import OutputParser, OutputSpec, OutputStopMatcher
from omlx.text.template.render import render
from omlx.text.tools import ToolUse
from tests.text.test_output import STATS, normal
from tests.text.tokenizers import CHATML, decode_byte_level

LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALL = '<tool_call>{"name": "look", "arguments": {"a": "é"}}</tool_call>'
ASK = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    """A tokenizer whose template knows tools, as mlx-lm tells by these words."""
    tools = (
        "{# <tool_call> tool_call.name #}"
        "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    )
    return decode_byte_level(tmp_path_factory.mktemp("caller"), tools + CHATML)


def ids(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def run(
    tokenizer: TokenizerWrapper, chunks: list[list[int]], spec: OutputSpec
) -> list[OutputEvent]:
    machine = OutputParser(tokenizer, spec)
    fed = []
    for chunk in chunks:
        fed += machine.feed(chunk, [TokenLogprob(token, -1.0) for token in chunk])
    return fed + machine.finish(FinishReason.STOP, STATS)


def said(events: list[OutputEvent]) -> list[tuple[str, str]]:
    """GrammarKind and text, neighbours of one kind joined."""
    out: list[tuple[str, str]] = []
    for event in events:
        match event:
            case TextDelta(text=text) | ReasoningDelta(text=text) | ToolCallArguments(text=text):
                pass
            case ToolCallStart(name=text):
                pass
            case ToolCallEnd():
                text = ""
            case HiddenLogprobs():
                continue
            case Finish(tool_calls=calls, stop=stop):
                text = f"{calls} {stop}"
        kind = type(event).__name__
        if out and out[-1][0] == kind:
            out[-1] = (kind, out[-1][1] + text)
        else:
            out.append((kind, text))
    return out


@given(
    text=st.lists(
        st.sampled_from(["<think>", "</think>", CALL, "<tool_call>", " ", "é", "a", "}", '{"']),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    stops=st.lists(st.sampled_from(["aa", "}}", "é"]), max_size=1),
    single=st.booleans(),
)
def test_any_chunking_gives_the_same_events(
    caller: TokenizerWrapper, text: list[str], cuts: list[int], stops: list[str], single: bool
) -> None:
    tokens = ids(caller, "".join(text))
    spec = OutputSpec(stops=tuple(stops), tools=(LOOK,), single=single)
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    whole = run(caller, [tokens], spec)
    for chunks in ([tokens[a:b] for a, b in pairwise(edges)], [[token] for token in tokens]):
        events = run(caller, chunks, spec)
        assert said(events) == said(whole)
        assert [(kind, of_kind) for kind, _, of_kind in normal(events)] == [
            (k, of) for k, _, of in normal(whole)
        ]


def test_the_markers_of_a_call_are_no_part_of_a_message(caller: TokenizerWrapper) -> None:
    kinds = normal(
        run(caller, [[token] for token in ids(caller, f"a {CALL}\n b")], OutputSpec(tools=(LOOK,)))
    )
    assert [(kind, caller.decode(of_kind)) for kind, _, of_kind in kinds] == [
        ("TextDelta", "a"),
        ("ToolCallStart", ' <tool_call>{"name": "look", "arguments": {'),
        ("ToolCallArguments", '"a": "é"}'),
        ("ToolCallEnd", ""),
        ("HiddenLogprobs", "}</tool_call>\n"),
        ("TextDelta", " b"),
        ("Finish", ""),
    ]


@pytest.mark.parametrize("single", [False, True])
@given(text=st.lists(st.sampled_from([CALL, "<tool_call>", " ", "a", "b"]), max_size=6))
def test_the_watcher_stops_where_the_output_is_over(
    caller: TokenizerWrapper, single: bool, text: list[str]
) -> None:
    tokens = ids(caller, "".join(text))
    spec = OutputSpec(stops=("ab",), tools=(LOOK,), single=single)
    watcher = OutputStopMatcher(caller, spec)
    at = next((i + 1 for i, token in enumerate(tokens) if watcher.push(token)), len(tokens))
    assert said(run(caller, [tokens[:at]], spec)) == said(run(caller, [tokens], spec))


def test_a_forced_call_adds_nothing_to_the_prompt(caller: TokenizerWrapper) -> None:
    free = render(caller, ASK, {"deep": True}, tools=ToolUse((LOOK,)))
    assert render(caller, ASK, {"deep": True}, tools=ToolUse((LOOK,), forced=True)) == free
    assert free.thinking


def test_a_call_of_unknown_form_cannot_be_forced(
    caller: TokenizerWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markup, "FAMILIES", ())
    monkeypatch.setattr(markup, "PARSERS", {})
    with pytest.raises(BadRequest) as caught:
        render(caller, ASK, tools=ToolUse((LOOK,), forced=True))
    assert (caught.value.code, caught.value.param) == ("tools.cannot_force", "tool_choice")


def test_tools_are_in_the_prompt_and_are_left_alone(caller: TokenizerWrapper) -> None:
    prompt = render(caller, ASK, tools=ToolUse((LOOK,)))
    assert "look" in caller.decode(prompt.tokens)


def test_a_model_without_calls_cannot_be_given_tools(bpe: TokenizerWrapper) -> None:
    with pytest.raises(BadRequest) as caught:
        render(bpe, ASK, tools=ToolUse((LOOK,)))
    assert (caught.value.code, caught.value.param) == ("tools.no_format", "tools")
