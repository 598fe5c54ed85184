"""Thinking budgets over real tokenizers with the markers of each family."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import allows, forced_tokens, only_token
from omlx.engine.types import TokenMask
from omlx.text.constraint import CLOSING_SENTENCE, ThinkingBudgets
from omlx.text.grammar import GrammarCompiler, GrammarKind, Preamble, StructuredOutput
from omlx.text.tokens import TokenBytes
from tests.templates.parsing import parse
from tests.text.test_harmony import MARKERS
from tests.text.test_harmony import TEMPLATE as HARMONY
from tests.text.test_reasoning import APRIEL, COHERE, GRANITE, MISTRAL, PLAIN, SEED, SOLAR, model
from tests.text.tokenizers import CHATML, decode_byte_level

THOUGHT = "well, é and so on, without an end, on and on and on " * 3


def budgets(tokenizer: TokenizerWrapper) -> ThinkingBudgets:
    return ThinkingBudgets(tokenizer, TokenBytes(tokenizer), len(tokenizer))


def budget_mask(
    tokenizer: TokenizerWrapper,
    budget: int,
    inner: TokenMask | None = None,
    *,
    thinking: bool = False,
) -> TokenMask:
    mask = budgets(tokenizer).mask(budget, inner, None, thinking=thinking)
    assert mask is not None
    return mask


def write(tokenizer: TokenizerWrapper, mask: TokenMask, *texts: str) -> list[int]:
    """The output of a model that wants to write the texts: where it is not allowed to go on with
    one, it writes what is forced, and then the next text."""
    output: list[int] = []
    for text in texts:
        for token in tokenizer.encode(text, add_special_tokens=False):
            if not allows(mask.bits(), token):
                break
            assert mask.advance(token)
            output.append(token)
        while not mask.ended and (forced := only_token(mask.bits())) is not None:
            assert mask.advance(forced)
            output.append(forced)
    return output


@pytest.fixture
def harmony(tmp_path: Path) -> TokenizerWrapper:
    return decode_byte_level(tmp_path, HARMONY, tuple(f"<|{name}|>" for name in MARKERS))


CASES = [
    (MISTRAL, "[THINK]", "so"),
    (SEED, "<seed:think>", "so"),
    (COHERE, "<|START_THINKING|>", "<|START_TEXT|>so"),
    (APRIEL, "Here are my reasoning steps:", "so"),
    (GRANITE, "<think>", "<response>so</response>"),
    (PLAIN, "<think>", "so"),
    (SOLAR, "<|think|>", "<|begin|>assistant<|content|>so"),
]


@pytest.mark.parametrize(("words", "opening", "answer"), CASES)
@pytest.mark.parametrize("budget", [0, 9])
def test_reasoning_is_closed_after_its_budget(
    tmp_path: Path, words: str, opening: str, answer: str, budget: int
) -> None:
    tokenizer = model(tmp_path, words)
    output = write(tokenizer, budget_mask(tokenizer, budget), opening + THOUGHT, answer)
    parsed = parse(tokenizer, output)
    assert parsed.text == "so"
    thought = tokenizer.encode(THOUGHT, add_special_tokens=False)[:budget]
    closing = CLOSING_SENTENCE if budget else ""
    assert parsed.reasoning.rstrip() == (tokenizer.decode(thought) + closing).rstrip()


def test_reasoning_that_the_prompt_has_opened(bpe: TokenizerWrapper) -> None:
    mask = budget_mask(bpe, 5, thinking=True)
    output = write(bpe, mask, "abcdefgh", "so")
    assert bpe.decode(output) == f"abcde{CLOSING_SENTENCE}</think>so"
    assert bpe.decode(write(bpe, budget_mask(bpe, 0, thinking=True), "a", "so")) == "</think>so"


def test_shorter_reasoning_and_answers_are_untouched(bpe: TokenizerWrapper) -> None:
    text = "<think>\nabc\n</think>\n\nThis <think> is text, however long."
    mask = budget_mask(bpe, 9)
    output = bpe.encode(text, add_special_tokens=False)
    for token in output:
        assert mask.bits() is None
        assert mask.advance(token)
    assert mask.free > len(output)


def test_reasoning_does_not_open_again(tmp_path: Path) -> None:
    """Where it may follow content, its tokens add up."""
    markers = ("<|im_start|>", "<|im_end|>", "[THINK]", "[/THINK]")
    tokenizer = decode_byte_level(tmp_path, "{# [THINK][/THINK] #}" + CHATML, markers)
    mask = budget_mask(tokenizer, 4)
    begun = "[THINK]ab[/THINK]x[THINK]"
    output = write(tokenizer, mask, begun + "cde", "y[THINK]", "z")
    assert tokenizer.decode(output) == f"{begun}cd{CLOSING_SENTENCE}[/THINK]yz"


@pytest.mark.parametrize("budget", [0, 3])
def test_gpt_oss_goes_on_with_another_channel(harmony: TokenizerWrapper, budget: int) -> None:
    thought = "<|channel|>analysis<|message|>abcdef"
    again = "<|start|>assistant<|channel|>analysis<|message|>"
    answer = "final<|message|>so"
    mask = budget_mask(harmony, budget)
    texts = (thought, again, answer) if budget else (thought, answer)
    text = harmony.decode(write(harmony, mask, *texts))
    closed = f"<|channel|>analysis<|message|>abc{CLOSING_SENTENCE}<|end|><|start|>assistant"
    assert text == (closed if budget else "") + "<|channel|>final<|message|>so"


def test_an_answer_in_a_form_follows_the_closed_reasoning(bpe: TokenizerWrapper) -> None:
    compiler = GrammarCompiler(bpe, bpe.eos_token_ids)
    form = StructuredOutput(GrammarKind.CHOICE, '["yes", "no"]', "guided_choice")
    inner = compiler.mask(compiler.compile(form), Preamble(may_think=True))
    mask = budget_mask(bpe, 4, inner)
    output = write(bpe, mask, "<think>abcdef", "yes")
    assert bpe.decode(output) == f"<think>abcd{CLOSING_SENTENCE}</think>yes"
    assert mask.ended


def test_no_markers_no_budget(tmp_path: Path) -> None:
    silent = budgets(decode_byte_level(tmp_path, CHATML.replace("<think>", ""), ("<|im_end|>",)))
    assert silent.markers is None
    assert silent.mask(9, None, None, thinking=False) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_mask_is_the_same_after_a_rollback(bpe: TokenizerWrapper, seed: int) -> None:
    """And what it says to be free is free, whatever comes."""
    rng = random.Random(seed)
    parts = bpe.encode("<think></think> aé\n", add_special_tokens=False)
    new: Callable[[], TokenMask] = partial(budget_mask, bpe, 6, thinking=seed % 2 > 0)
    mask, said = new(), list[int]()
    for _ in range(60):
        token = only_token(mask.bits()) or rng.choice(parts)
        draft = [*forced_tokens(mask, 40), *rng.choices(parts, k=5)]
        free = mask.free
        taken = 0
        while taken < len(draft):
            assert taken >= free or mask.bits() is None
            if not mask.advance(draft[taken]):
                break
            taken += 1
        mask.rollback(taken)
        again = new()
        for earlier in said:
            assert again.advance(earlier)
        assert (again.bits(), again.free) == (mask.bits(), free)
        assert mask.advance(token)
        said.append(token)
