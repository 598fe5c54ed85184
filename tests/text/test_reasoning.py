"""Reasoning of the families that mark it by other means than `<think>` tokens, over real tokenizers
with the texts that their chat templates have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import forced_tokens
from omlx.engine.types import FinishReason
from omlx.text.events import ReasoningDelta
from omlx.text.grammar import GrammarCompiler, GrammarKind, Preamble, StructuredOutput
from omlx.text.output import OutputParser, OutputSpec
from omlx.text.reasoning import FAMILIES, opens_reasoning
from omlx.text.template.render import render
from tests.templates.parsing import parse
from tests.text.tokenizers import CHATML, decode_byte_level

MISTRAL = "[THINK][/THINK]"
SEED = "<seed:think>"
MINIMAX_3 = "<mm:think>"
HY3 = "<think{}> ':opensource'"
COHERE = "<|START_THINKING|><|END_THINKING|>"
APERTUS = "<|inner_prefix|><|inner_suffix|>"
APRIEL = "[BEGIN FINAL RESPONSE]"
GRANITE = "<think></think><response></response>"
HORIZON = "<ifm|think></ifm|think>"
INKLING = "<|content_thinking|>"
SOLAR = "<|begin|>assistant<|think|>"
FUNCTIONARY = ">>>${recipient}"
PLAIN = "<think></think>"


def model(folder: Path, words: str, template: str = CHATML) -> TokenizerWrapper:
    """Return a tokenizer whose template has some words, none of which are tokens."""
    comment = "{# " + words + " #}"
    return decode_byte_level(folder, comment + template, ("<|im_start|>", "<|im_end|>"))


@pytest.mark.parametrize(
    ("words", "text", "reasoning", "content"),
    [
        (MISTRAL, "[THINK]why\n[/THINK]so", "why", "so"),
        (MISTRAL, "[THINK]a[/THINK]b[THINK]c[/THINK]d[/THINK]", "ac", "bd"),
        (SEED, "<seed:think>why</seed:think>\nso<seed:eos>", "why", "so"),
        (MINIMAX_3, "<mm:think>why</mm:think>so", "why", "so"),
        (MINIMAX_3, "</mm:think>so", "", "so"),
        (HY3, "<think:opensource>why</think:opensource>so", "why", "so"),
        (COHERE, "<|START_THINKING|>why<|END_THINKING|><|START_TEXT|>so<|END_TEXT|>", "why", "so"),
        (COHERE, "<|START_RESPONSE|>so<|END_RESPONSE|>", "", "so"),
        (APERTUS, "<|inner_prefix|>why<|inner_suffix|>so", "why", "so"),
        (APERTUS, "<|inner_prefix|>why<|tools_prefix|>[", "why", "<|tools_prefix|>["),
        (APRIEL, "Here are my reasoning steps:\nwhy\n[BEGIN FINAL RESPONSE]\nso", "why", "so"),
        (GRANITE, "<think>why</think>\n<response>so</response>\n", "why", "so"),
        (GRANITE, "use <response> and </response>", "", "use <response> and </response>"),
        (SOLAR, "<|think|>why<|end|><|begin|>assistant<|content|>so<|end|>", "why", "so"),
        (SOLAR, "<|content|>so<|end|>", "", "so"),
        (HORIZON, "<ifm|think>why</ifm|think>so", "why", "so"),
        (
            INKLING,
            "<|content_thinking|>why<|end_message|><|message_model|><|content_text|>so"
            "<|end_message|><|content_model_end_sampling|>",
            "why",
            "so",
        ),
        (INKLING, "<|content_text|>so", "", "so"),
        (FUNCTIONARY, "all\nso all\n", "", "so all\n"),
        (FUNCTIONARY, "so>>>all\nthen", "", "sothen"),
        (PLAIN, "<think>why</think>so", "why", "so"),
        (PLAIN, "a <think>b", "", "a <think>b"),
    ],
)
def test_reasoning_is_told_from_the_answer(
    tmp_path: Path, words: str, text: str, reasoning: str, content: str
) -> None:
    output = parse(model(tmp_path, words), text)
    assert (output.reasoning, output.text) == (reasoning, content)


def test_messages_of_inkling_are_reasoning_an_answer_and_calls(tmp_path: Path) -> None:
    """Headers name the function, too; the prompt has opened the first message."""
    tokenizer = model(tmp_path, "<|content_thinking|><|content_invoke_tool_json|>")
    call = '<|content_invoke_tool_json|>{"name": "look", "args": {"at": "x"}}<|end_message|>'
    text = "<|content_thinking|>why<|end_message|><|message_model|><|content_text|>I look."
    text += f"<|end_message|><|message_model|>look{call}<|message_model|>look{call}"
    look = {"type": "function", "function": {"name": "look", "parameters": {}}}
    for seed in range(9):
        output = parse(tokenizer, text, [look], seed)
        assert (output.reasoning, output.text) == ("why", "I look.")
        assert output.named == [("look", {"at": "x"})] * 2


@pytest.mark.parametrize("level", ["think", "think_fast", "think_faster"])
def test_k2_horizon_has_markers_for_every_effort(tmp_path: Path, level: str) -> None:
    tokenizer = model(tmp_path, HORIZON)
    opened = tokenizer.encode(f"<|im_start|>assistant\n<ifm|{level}>", add_special_tokens=False)
    assert opens_reasoning(tokenizer, opened)
    output = parse(tokenizer, f"why</ifm|{level}>so", thinking=True)
    assert (output.reasoning, output.text) == ("why", "so")


def test_every_family_is_tried() -> None:
    tried = (MISTRAL, SEED, MINIMAX_3, HY3, COHERE, APERTUS, APRIEL, GRANITE, FUNCTIONARY, HORIZON)
    for texts in FAMILIES:
        assert any(all(text in words for text in texts) for words in tried)


def test_a_prompt_that_opens_reasoning_by_a_text(tmp_path: Path) -> None:
    opened = CHATML.replace("<think>", "Here are my reasoning steps:").replace("and deep", "")
    tokenizer = model(tmp_path, APRIEL, opened)
    asked = [{"role": "user", "content": "x"}]
    assert render(tokenizer, asked, {"enable_thinking": True}).thinking
    assert not render(model(tmp_path, APRIEL), asked).thinking


def compiled(tokenizer: TokenizerWrapper, preamble: Preamble) -> Any:
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_token_ids)
    answer = compiler.compile(StructuredOutput(GrammarKind.CHOICE, '["yes"]', "form"))
    return compiler.mask(answer, preamble)


def test_an_answer_is_held_to_its_grammar_behind_reasoning_that_ends_in_a_text(
    tmp_path: Path,
) -> None:
    tokenizer = model(tmp_path, APRIEL)
    mask = compiled(tokenizer, Preamble(thinking=True))
    for token in tokenizer.encode("[BEGIN ] why\n[BEGIN FINAL RESPONSE]\n\n"):
        assert mask.advance(token)
    assert tokenizer.decode(forced_tokens(mask, 8)) == "yes"


def test_an_answer_begins_at_once_where_reasoning_would_open_with_a_text(tmp_path: Path) -> None:
    tokenizer = model(tmp_path, APRIEL)
    mask = compiled(tokenizer, Preamble(may_think=True))
    assert tokenizer.decode(forced_tokens(mask, 8)) == "yes"


LOOK: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}
UNCLOSED: Final = {
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


@pytest.fixture(scope="module", params=UNCLOSED)
def unclosed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TokenizerWrapper, str, str]:
    """A tokenizer, a call, and the marker that closes reasoning."""
    words, call = UNCLOSED[request.param]
    folder = tmp_path_factory.mktemp("unclosed")
    tokenizer = decode_byte_level(folder, f"{{# {words} #}}{CHATML}")
    return tokenizer, call, str(tokenizer.think_end)


def parse_unclosed(
    tokenizer: TokenizerWrapper,
    text: str,
    seed: int,
    reason: FinishReason = FinishReason.STOP,
    **spec: Any,
) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return reasoning, text and calls of an output whose reasoning the prompt has opened."""
    output = parse(tokenizer, text, (LOOK,), seed, reason, thinking=True, **spec)
    assert all(output.complete)
    return output.reasoning, output.text, output.named


@pytest.mark.parametrize("seed", [0, 1, 10])
def test_a_call_in_reasoning_that_never_ends_is_a_call(
    unclosed: tuple[TokenizerWrapper, str, str], seed: int
) -> None:
    tokenizer, call, _ = unclosed
    assert parse_unclosed(tokenizer, f"I look.\n{call}", seed) == ("I look.", "", [CALL])
    assert parse_unclosed(tokenizer, f"{call}\n{call}\n", seed) == ("", "", [CALL, CALL])
    assert parse_unclosed(tokenizer, f"A\n{call}\nB", seed) == ("A\nB", "", [CALL])


@pytest.mark.parametrize("seed", [0, 1, 10])
def test_a_call_in_reasoning_that_ends_is_only_considered(
    unclosed: tuple[TokenizerWrapper, str, str], seed: int
) -> None:
    tokenizer, call, close = unclosed
    thought = f"Perhaps\n{call}\nor not."
    assert parse_unclosed(tokenizer, f"{thought}{close}No.", seed) == (thought, "No.", [])
    assert parse_unclosed(tokenizer, f"{thought}{close}", seed) == (thought, "", [])
    assert parse_unclosed(tokenizer, f"{thought}{close}{call}", seed) == (thought, "", [CALL])


@pytest.mark.parametrize("seed", [0, 10])
def test_what_is_no_complete_call_stays_reasoning(
    unclosed: tuple[TokenizerWrapper, str, str], seed: int
) -> None:
    tokenizer, call, _ = unclosed
    marker = call[: call.index(">") + 1]
    for text in (f"The tag {marker} opens", f"So\n{call[: call.index('x')]}", f"So {marker}"):
        assert parse_unclosed(tokenizer, text, seed) == (text, "", [])


def test_reasoning_that_the_limit_has_cut_makes_no_call(
    unclosed: tuple[TokenizerWrapper, str, str],
) -> None:
    tokenizer, call, _ = unclosed
    text = f"A\n{call}\nB"
    assert parse_unclosed(tokenizer, text, 3, FinishReason.LENGTH) == (text, "", [])


def test_a_strict_function_is_not_called_without_its_grammar(
    unclosed: tuple[TokenizerWrapper, str, str],
) -> None:
    tokenizer, call, _ = unclosed
    thought, _, calls = parse_unclosed(tokenizer, f"A\n{call}", 1, strict=frozenset({"look"}))
    assert (thought, calls) == (f"A\n{call}", [])


def test_reasoning_before_a_call_is_not_delayed(
    unclosed: tuple[TokenizerWrapper, str, str],
) -> None:
    tokenizer, call, _ = unclosed
    parser = OutputParser(tokenizer, OutputSpec(tools=(LOOK,), thinking=True))
    events = parser.feed(list(tokenizer.encode(f"I look.\n{call}", add_special_tokens=False)))
    assert events == [ReasoningDelta("I look.")]
