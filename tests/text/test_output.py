"""Calls from tokens: through detokenizer, stop strings and channels, with the openings and ends
that requests force.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import BadRequest, Reason
from omlx.records import RequestStats
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
from tests.text.tokenizers import CHATML, decode_byte_level

STATS = RequestStats(1, 0, 1, 0.0, 0.0, 0.0, 0, {}, Reason("spec.off.requested"))


def run(
    tokenizer: TokenizerWrapper,
    chunks: list[list[int]],
    spec: OutputSpec,
    reason: FinishReason = FinishReason.LENGTH,
) -> list[OutputEvent]:
    machine = OutputParser(tokenizer, spec)
    events = []
    for chunk in chunks:
        events += machine.feed(chunk, [TokenLogprob(token, -1.0) for token in chunk])
    return events + machine.finish(reason, STATS)


def normal(events: list[OutputEvent]) -> list[tuple[str, str, list[int]]]:
    """By run of kind: its text, and the tokens of its logprobs."""
    runs = [(kind.__name__, list(run)) for kind, run in groupby(events, type)]
    normalized = []
    for kind, run in runs:
        text = "".join(getattr(event, "text", "") for event in run)
        logprobs = chain.from_iterable(event.logprobs for event in run)
        normalized.append((kind, text, [logprob.token for logprob in logprobs]))
    return normalized


@given(
    text=st.lists(
        st.sampled_from(["<think>", "</think>", " the", "é", "ab", "\n", "l", "<", "日"]),
        max_size=12,
    ),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    stops=st.lists(st.sampled_from(["ab", "é\n", "the", "日l"]), max_size=2),
)
def test_any_chunking_gives_the_same_events(
    bpe: TokenizerWrapper, text: list[str], cuts: list[int], stops: list[str]
) -> None:
    tokens = bpe.encode("".join(text), add_special_tokens=False)
    spec = OutputSpec(stops=tuple(stops))
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    chunks = [tokens[a:b] for a, b in pairwise(edges)]
    whole = run(bpe, [tokens], spec)
    for other in (run(bpe, chunks, spec), run(bpe, [[token] for token in tokens], spec)):
        assert normal(other) == normal(whole)
        assert replace(other[-1], logprobs=()) == replace(whole[-1], logprobs=())
    assert list(chain.from_iterable(of_kind for _, _, of_kind in normal(whole))) == tokens


@pytest.mark.parametrize("size", [1, 2, 100])
def test_logprobs_are_those_of_the_tokens_that_an_event_is_made_of(
    bpe: TokenizerWrapper, size: int
) -> None:
    parts = {
        "ReasoningDelta": "<think>\nso",
        "HiddenLogprobs": "\n</think>\n\n",
        "TextDelta": "aé the",
        "Finish": "aba",
    }
    tokens = bpe.encode("".join(parts.values()), add_special_tokens=False)
    chunks = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    kinds = normal(run(bpe, chunks, OutputSpec(stops=("aba",))))
    assert [(kind, bpe.decode(of_kind)) for kind, _, of_kind in kinds] == list(parts.items())


def test_reasoning_tokens_are_counted(bpe: TokenizerWrapper) -> None:
    tokens = bpe.encode("<think>ab</think>ab", add_special_tokens=False)
    events = run(bpe, [tokens], OutputSpec())
    assert [type(event) for event in events] == [ReasoningDelta, HiddenLogprobs, TextDelta, Finish]
    assert isinstance(events[-1], Finish)
    assert events[-1].reasoning_tokens == 4


def test_a_stop_id_has_neither_text_nor_logprob(bpe: TokenizerWrapper) -> None:
    end = bpe.eos_token_id
    events = run(
        bpe,
        [[*bpe.encode("ab", add_special_tokens=False), end]],
        OutputSpec(stop_ids=frozenset({end})),
    )
    assert isinstance(events[0], TextDelta)
    assert (events[0].text, len(events[0].logprobs)) == ("ab", 2)


def test_a_stop_string_in_the_last_bytes_makes_the_reason_stop(bpe: TokenizerWrapper) -> None:
    events = run(bpe, [bpe.encode("a ", add_special_tokens=False)], OutputSpec(stops=(" ",)))
    assert replace(events[-1], logprobs=()) == Finish(FinishReason.STOP, STATS, stop=" ")


@pytest.mark.parametrize("marked", [True, False])
def test_drafted_tokens_are_marked_if_the_request_wants_to_know(
    bpe: TokenizerWrapper, marked: bool
) -> None:
    tokens = bpe.encode("<think>ab</think>ab the é", add_special_tokens=False)
    parser = OutputParser(bpe, OutputSpec(mark_drafted=marked))
    drafted = [at >= len(tokens) - 2 for at in range(len(tokens))]
    events = parser.feed(tokens, (), drafted) + parser.finish(FinishReason.LENGTH, STATS)
    texts = [event for event in events if isinstance(event, TextDelta | ReasoningDelta)]
    assert [text.drafted for text in texts] == ([False, False, True] if marked else [False, False])
    assert "".join(text.text for text in texts if isinstance(text, TextDelta)) == "ab the é"


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
def test_any_chunking_gives_the_same_calls(
    caller: TokenizerWrapper, text: list[str], cuts: list[int], stops: list[str], single: bool
) -> None:
    tokens = ids(caller, "".join(text))
    spec = OutputSpec(stops=tuple(stops), tools=(LOOK,), single=single)
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    whole = run(caller, [tokens], spec, FinishReason.STOP)
    for chunks in ([tokens[a:b] for a, b in pairwise(edges)], [[token] for token in tokens]):
        events = run(caller, chunks, spec, FinishReason.STOP)
        assert said(events) == said(whole)
        assert [(kind, of_kind) for kind, _, of_kind in normal(events)] == [
            (k, of) for k, _, of in normal(whole)
        ]


def test_the_markers_of_a_call_are_no_part_of_a_message(caller: TokenizerWrapper) -> None:
    kinds = normal(
        run(
            caller,
            [[token] for token in ids(caller, f"a {CALL}\n b")],
            OutputSpec(tools=(LOOK,)),
            FinishReason.STOP,
        )
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
    assert said(run(caller, [tokens[:at]], spec, FinishReason.STOP)) == said(
        run(caller, [tokens], spec, FinishReason.STOP)
    )


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
