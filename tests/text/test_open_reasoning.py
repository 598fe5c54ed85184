"""Calls inside reasoning: made only if the model never closes it."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason
from omlx.text.events import (
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from omlx.text.output import OutputParser, OutputSpec
from tests.text.test_output import STATS
from tests.text.tokenizers import CHATML, decode_byte_level

LOOK: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
FAMILIES: Final = {
    "qwen3_coder": (
        "<tool_call>\n<function=",
        "<tool_call>\n<function=look>\n<parameter=at>\nx\n</parameter>\n</function>\n</tool_call>",
    ),
    "json_tools": (
        "<tool_call> tool_call.name",
        '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>',
    ),
    "minimax_m2": (
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="look">\n<parameter name="at">x</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
        '<|tool_call_argument_begin|>{"at": "x"}<|tool_call_end|><|tool_calls_section_end|>',
    ),
}
CALL: Final = ("look", {"at": "x"})


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TokenizerWrapper, str, str]:
    """A tokenizer, a call, and the marker that closes reasoning."""
    words, call = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("model")
    tokenizer = decode_byte_level(folder, f"{{# {words} #}}{CHATML}")
    return tokenizer, call, str(tokenizer.think_end)


def parse(
    tokenizer: TokenizerWrapper,
    text: str,
    seed: int,
    reason: FinishReason = FinishReason.STOP,
    **spec: Any,
) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return reasoning, text and calls of an output whose reasoning the prompt has opened."""
    parser = OutputParser(tokenizer, OutputSpec(tools=(LOOK,), thinking=True, **spec))
    tokens = list(tokenizer.encode(text, add_special_tokens=False))
    choose = random.Random(seed)
    cuts = sorted({0, len(tokens), *(choose.randrange(len(tokens)) for _ in range(8 * seed))})
    events = [event for start, end in pairwise(cuts) for event in parser.feed(tokens[start:end])]
    thought, said, calls = "", "", list[list[str]]()
    for event in [*events, *parser.finish(reason, STATS)]:
        match event:
            case ReasoningDelta(text=piece):
                thought += piece
            case TextDelta(text=piece):
                said += piece
            case ToolCallStart(name=name, index=index):
                assert index == len(calls)
                calls.append([name, ""])
            case ToolCallArguments(text=piece):
                calls[-1][1] += piece
            case ToolCallEnd(complete=complete):
                assert complete
            case Finish(tool_calls=count):
                assert count == len(calls)
    return thought, said, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("seed", [0, 1, 10])
def test_a_call_in_reasoning_that_never_ends_is_a_call(
    model: tuple[TokenizerWrapper, str, str], seed: int
) -> None:
    tokenizer, call, _ = model
    assert parse(tokenizer, f"I look.\n{call}", seed) == ("I look.", "", [CALL])
    assert parse(tokenizer, f"{call}\n{call}\n", seed) == ("", "", [CALL, CALL])
    assert parse(tokenizer, f"A\n{call}\nB", seed) == ("A\nB", "", [CALL])


@pytest.mark.parametrize("seed", [0, 1, 10])
def test_a_call_in_reasoning_that_ends_is_only_considered(
    model: tuple[TokenizerWrapper, str, str], seed: int
) -> None:
    tokenizer, call, close = model
    thought = f"Perhaps\n{call}\nor not."
    assert parse(tokenizer, f"{thought}{close}No.", seed) == (thought, "No.", [])
    assert parse(tokenizer, f"{thought}{close}", seed) == (thought, "", [])
    assert parse(tokenizer, f"{thought}{close}{call}", seed) == (thought, "", [CALL])


@pytest.mark.parametrize("seed", [0, 10])
def test_what_is_no_complete_call_stays_reasoning(
    model: tuple[TokenizerWrapper, str, str], seed: int
) -> None:
    tokenizer, call, _ = model
    marker = call[: call.index(">") + 1]
    for text in (f"The tag {marker} opens", f"So\n{call[: call.index('x')]}", f"So {marker}"):
        assert parse(tokenizer, text, seed) == (text, "", [])


def test_reasoning_that_the_limit_has_cut_makes_no_call(
    model: tuple[TokenizerWrapper, str, str],
) -> None:
    tokenizer, call, _ = model
    text = f"A\n{call}\nB"
    assert parse(tokenizer, text, 3, FinishReason.LENGTH) == (text, "", [])


def test_a_strict_function_is_not_called_without_its_grammar(
    model: tuple[TokenizerWrapper, str, str],
) -> None:
    tokenizer, call, _ = model
    thought, _, calls = parse(tokenizer, f"A\n{call}", 1, strict=frozenset({"look"}))
    assert (thought, calls) == (f"A\n{call}", [])


def test_reasoning_before_a_call_is_not_delayed(model: tuple[TokenizerWrapper, str, str]) -> None:
    tokenizer, call, _ = model
    parser = OutputParser(tokenizer, OutputSpec(tools=(LOOK,), thinking=True))
    events = parser.feed(list(tokenizer.encode(f"I look.\n{call}", add_special_tokens=False)))
    assert events == [ReasoningDelta("I look.")]
