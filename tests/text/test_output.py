from __future__ import annotations

from dataclasses import replace
from itertools import chain, groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import Reason
from omlx.records import RequestStats
from omlx.text.events import Finish, HiddenLogprobs, OutputEvent, ReasoningDelta, TextDelta
from omlx.text.output import OutputParser, OutputSpec

STATS = RequestStats(1, 0, 1, 0.0, 0.0, 0.0, 0, {}, Reason("spec.off.requested"))


def run(
    tokenizer: TokenizerWrapper, chunks: list[list[int]], spec: OutputSpec
) -> list[OutputEvent]:
    machine = OutputParser(tokenizer, spec)
    events = []
    for chunk in chunks:
        events += machine.feed(chunk, [TokenLogprob(token, -1.0) for token in chunk])
    return events + machine.finish(FinishReason.LENGTH, STATS)


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
