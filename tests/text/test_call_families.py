"""Calls of every family, over real tokenizers with the texts that chat templates have: whatever may
be said reads as calls of what may be called, with arguments that have their schema.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

from omlx.text.calls import markup
from omlx.text.calls.markup import call_format
from tests.schemas import SMALL, record
from tests.templates.parsing import parse
from tests.text.calls import (
    ARGUMENTS,
    EXAMPLES,
    FAMILIES,
    SCHEMAS,
    TEXT,
    Family,
    mask,
    read,
    say,
    use,
    valid,
    walk,
)
from tests.text.tokenizers import decode_byte_level


@pytest.fixture(scope="module", params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def family(name: str) -> Family:
    return FAMILIES[name]


@pytest.fixture(scope="module")
def model(family: Family, tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    return family.load(tmp_path_factory.mktemp("family"))


def test_every_format_is_tried() -> None:
    tried = [each.form for each in FAMILIES.values()]
    assert all(form in tried for form in markup.FAMILIES)


def test_the_template_shows_the_family(family: Family, model: TokenizerWrapper) -> None:
    assert call_format(model) == family.form


def test_a_template_of_mlx_lm_in_python_shows_the_family(tmp_path: Path) -> None:
    decode_byte_level(tmp_path, None)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template_type"] = "deepseek_v32"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert call_format(load(tmp_path)) == EXAMPLES["deepseek v3.2"].form


@pytest.mark.parametrize("name", EXAMPLES, indirect=True)
def test_a_call(name: str, model: TokenizerWrapper) -> None:
    functions = use({"get_weather": record(city=TEXT, days=SMALL)}).functions
    output = parse(model, EXAMPLES[name].one, functions)
    assert (output.text, output.named) == ("", [("get_weather", ARGUMENTS)])
    assert output.calls[0][0]


def test_a_forced_answer_is_calls(family: Family, model: TokenizerWrapper) -> None:
    several = use(SCHEMAS, forced=True)
    counts, seen = set[int](), set[str]()
    for seed in range(12):
        tokens = walk(mask(model, several), model, seed, family.closing)
        text, calls = read(model, tokens, several)
        assert text == ""
        assert valid(calls, SCHEMAS)
        counts.add(len(calls))
        seen |= {name for name, _ in calls}
        if seed > 3 and len(counts) > 1 and len(seen) > 1:
            break
    assert 0 not in counts
    assert len(counts) > 1
    assert len(seen) > 1


def test_a_single_call_ends_the_answer(family: Family, model: TokenizerWrapper) -> None:
    for seed, name in enumerate((None, *SCHEMAS)):
        one = use(SCHEMAS, forced=True, single=True, name=name)
        of = mask(model, one)
        tokens = walk(of, model, seed, family.closing)
        assert of.ended
        assert not model.eos_token_ids.intersection(tokens), "nothing else may come"
        text, ((called, arguments),) = read(model, tokens, one)
        assert text == ""
        assert name in (None, called)
        assert valid([(called, arguments)], SCHEMAS)


def test_a_strict_call_in_prose_is_held(family: Family, model: TokenizerWrapper) -> None:
    strict = use(SCHEMAS, strict=frozenset(SCHEMAS))
    for seed in range(2):
        of = mask(model, strict)
        tokens = say(of, model, f"So. {family.form.start}")
        tokens += walk(of, model, seed, family.closing)
        text, calls = read(model, tokens, strict)
        assert (text, bool(calls)) == ("So.", True)
        assert valid(calls, SCHEMAS)


@pytest.mark.parametrize("name", ["llama", "functionary 3.2"], indirect=True)
def test_a_strict_call_that_is_the_answer_is_held(
    name: str, family: Family, model: TokenizerWrapper
) -> None:
    schemas = {"get_weather": record(["city"], city=TEXT, days=SMALL), "look": record(days=SMALL)}
    strict = use(schemas, strict=frozenset(schemas))
    text = EXAMPLES[name].one
    for seed in range(2):
        of = mask(model, strict)
        tokens = say(of, model, text[: text.index("{", 1) + 1])
        tokens += walk(of, model, seed, family.closing)
        text_before, calls = read(model, tokens, strict)
        assert text_before == ""
        assert calls
        assert valid(calls, schemas)
    of = mask(model, strict)
    say(of, model, 'So {"answer": 1}')
    assert of.advance(next(iter(model.eos_token_ids)))
    of = mask(model, strict)
    wrong = model.encode(text.replace("get_weather", "other"), add_special_tokens=False)
    assert not all(of.advance(token) for token in wrong)
