"""Calls of the families that mlx-lm has no parser for, over real tokenizers with the texts that
their chat templates have: whole, cut anywhere, beside prose, cut off, forced and strict.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

from omlx.text.calls.markup import FAMILIES, call_format
from omlx.text.mask import GrammarMask
from tests import lanes
from tests.schemas import SMALL, WORD, listed, record
from tests.templates.parsing import parse
from tests.text import calls
from tests.text.calls import ARGUMENTS, EXAMPLES, mask, read, say, use, valid
from tests.text.tokenizers import decode_byte_level

TEXT: Final = {"type": "string"}
WEATHER: Final = record(["city"], city=TEXT, days=SMALL)
WIDE: Final = record(
    ["city", "warm"], city=TEXT, days=SMALL, warm={"type": "boolean"}, at=listed(WORD)
)
SCHEMAS: Final = {"get_weather": WEATHER, "look": record(days=SMALL)}
TOOLS: Final = use(SCHEMAS)
PROSE: Final = "I look."


@pytest.fixture(scope="module", params=EXAMPLES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    example = EXAMPLES[family]
    words = " ".join(example.form.templates[0])
    special = ("<|im_start|>", "<|im_end|>", *example.tokens)
    return calls.family(tmp_path_factory.mktemp("family"), words, special)


def walk(of: GrammarMask, model: TokenizerWrapper, family: str, seed: int) -> list[int]:
    """Say something at random that the mask allows, and now and then the tag that ends a text."""
    form = EXAMPLES[family].form
    closing = form.tags.closes if form.tags is not None else form.syntax.ender or '"'
    return calls.walk(of, model, seed, closing)


def test_the_template_shows_the_family(family: str, model: TokenizerWrapper) -> None:
    assert call_format(model) == EXAMPLES[family].form


def test_a_call(family: str, model: TokenizerWrapper) -> None:
    output = parse(model, EXAMPLES[family].one, TOOLS.functions)
    assert (output.text, output.named) == ("", [("get_weather", ARGUMENTS)])
    assert output.calls[0][0]


def test_a_forced_answer_is_calls(family: str, model: TokenizerWrapper) -> None:
    seen = set()
    for seed in range(4):
        tokens = walk(mask(model, use(SCHEMAS, forced=True)), model, family, seed)
        text, made = read(model, tokens, TOOLS)
        assert text == ""
        assert made
        assert valid(made, SCHEMAS)
        seen |= {name for name, _ in made}
    assert seen == set(SCHEMAS)


def test_a_forced_call_of_one_function_ends_the_answer(
    family: str, model: TokenizerWrapper
) -> None:
    one = use({"it": WIDE}, forced=True, single=True, name="it")
    for seed in range(4 if lanes.slow else 2):
        of = mask(model, one)
        _, made = read(model, walk(of, model, family, seed), one)
        assert of.ended
        assert [name for name, _ in made] == ["it"]
        assert valid(made, {"it": WIDE})


def test_a_strict_call_in_prose_is_held(family: str, model: TokenizerWrapper) -> None:
    strict = use(SCHEMAS, strict=frozenset(SCHEMAS))
    for seed in range(4 if lanes.slow else 2):
        of = mask(model, strict)
        tokens = say(of, model, f"{PROSE} {EXAMPLES[family].form.start}")
        tokens += walk(of, model, family, seed)
        text, made = read(model, tokens, strict)
        assert text == PROSE
        assert made
        assert valid(made, SCHEMAS)


@pytest.mark.parametrize("family", ["llama", "functionary 3.2"], indirect=True)
def test_a_strict_call_that_is_the_answer_is_held(family: str, model: TokenizerWrapper) -> None:
    strict = use(SCHEMAS, strict=frozenset(SCHEMAS))
    text = EXAMPLES[family].one
    for seed in range(4 if lanes.slow else 2):
        of = mask(model, strict)
        tokens = say(of, model, text[: text.index("{", 1) + 1])
        tokens += walk(of, model, family, seed)
        text_before, made = read(model, tokens, strict)
        assert text_before == ""
        assert made
        assert valid(made, SCHEMAS)
    of = mask(model, strict)
    say(of, model, 'So {"answer": 1}')
    assert of.advance(next(iter(model.eos_token_ids)))
    of = mask(model, strict)
    wrong = model.encode(text.replace("get_weather", "other"), add_special_tokens=False)
    assert not all(of.advance(token) for token in wrong)


def test_a_template_of_mlx_lm_in_python_shows_the_family(tmp_path: Path) -> None:
    decode_byte_level(tmp_path, None)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template_type"] = "deepseek_v32"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert call_format(load(tmp_path)) == EXAMPLES["deepseek v3.2"].form


def test_every_family_without_a_parser_of_mlx_lm_is_tried() -> None:
    known = {example.form.start for example in EXAMPLES.values()}
    others = {form.start for form in FAMILIES if not form.parser} - known
    assert others == {"<tool_call>", "[TOOL_CALLS]"}
