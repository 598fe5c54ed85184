from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason, Reason, RequestStats, TokenLogprob
from omlx.text.events import Finish, OutputEvent, ReasoningDelta, TextDelta
from omlx.text.output import Output, OutputSpec

STATS = RequestStats(1, 0, 1, 0.0, 0.0, 0.0, 0, {}, Reason("spec.off.requested"))


def run(tokenizer: TokenizerWrapper, chunks: list[list[int]], spec: OutputSpec) -> list[OutputEvent]:
    machine = Output(tokenizer, spec)
    events = [
        event for chunk in chunks for event in machine.feed(chunk, [TokenLogprob(token, -1.0) for token in chunk])
    ]
    return events + machine.finish(FinishReason.LENGTH, STATS)


def normal(events: list[OutputEvent]) -> tuple[list[tuple[str, str]], tuple[int, ...], Finish]:
    """Text by run of kind, all logprob tokens in order, and the finish without the logprobs that waited for it."""
    *deltas, finish = events
    assert isinstance(finish, Finish)
    texts = [(kind.__name__, "".join(e.text for e in run)) for kind, run in groupby(deltas, type)]  # type: ignore[union-attr]
    tokens = tuple(entry.token for event in events for entry in event.logprobs)
    return texts, tokens, Finish(finish.reason, finish.stats, finish.reasoning_n)


@given(
    text=st.lists(st.sampled_from(["<think>", "</think>", " the", "é", "ab", "\n", "l", "<", "日"]), max_size=12),
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
    whole = normal(run(bpe, [tokens], spec))
    assert normal(run(bpe, chunks, spec)) == whole
    assert normal(run(bpe, [[token] for token in tokens], spec)) == whole


def test_reasoning_tokens_are_counted(bpe: TokenizerWrapper) -> None:
    tokens = bpe.encode("<think>ab</think>ab", add_special_tokens=False)
    events = run(bpe, [tokens], OutputSpec())
    assert [type(event) for event in events] == [ReasoningDelta, TextDelta, Finish]
    assert isinstance(events[-1], Finish)
    assert events[-1].reasoning_n == 4


def test_a_stop_id_has_neither_text_nor_logprob(bpe: TokenizerWrapper) -> None:
    end = bpe.eos_token_id
    events = run(bpe, [[*bpe.encode("ab", add_special_tokens=False), end]], OutputSpec(stop_ids=frozenset({end})))
    assert isinstance(events[0], TextDelta)
    assert (events[0].text, len(events[0].logprobs)) == ("ab", 2)


def test_a_stop_string_in_the_last_bytes_makes_the_reason_stop(bpe: TokenizerWrapper) -> None:
    events = run(bpe, [bpe.encode("a ", add_special_tokens=False)], OutputSpec(stops=(" ",)))
    assert events[-1] == Finish(FinishReason.STOP, STATS, stop=" ")
