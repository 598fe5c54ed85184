"""Calls whose arguments are JSON, held to their functions: markup, prose and thoughts beside them,
what is refused.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import forced_tokens, only_token
from omlx.errors import BadRequest
from omlx.text.grammar import GrammarCompiler, GrammarKind, Preamble, StructuredOutput
from tests import lanes
from tests.lanes import few
from tests.schemas import SCHEMAS, SMALL, WORD, Schema, record
from tests.text.calls import (
    JSON_FAMILIES,
    allowed,
    grammars,
    ids_of,
    mask,
    read,
    say,
    use,
    valid,
    walk,
)

WEATHER: Final = record(["city"], city={"enum": ["Oslo", "Zürich"]}, days=SMALL)
LOOK: Final = record(at=WORD)
TWO: Final = {"get_weather": WEATHER, "look": LOOK}
STRICT: Final = use(TWO, strict=frozenset(TWO))


@pytest.fixture(scope="module", params=JSON_FAMILIES)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TokenizerWrapper:
    return JSON_FAMILIES[request.param].load(tmp_path_factory.mktemp("caller"))


@pytest.fixture(scope="module")
def json_tools(tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    return JSON_FAMILIES["json tools"].load(tmp_path_factory.mktemp("json"))


# -- an answer that must be calls
# --------------------------------------------------------------------------------


def test_markup_must_come_and_is_spelled_as_the_tokenizer_spells_it(
    tokenizer: TokenizerWrapper,
) -> None:
    run = list(forced_tokens(mask(tokenizer, use(TWO, forced=True, single=True, name="look")), 200))
    text = str(tokenizer.decode(run))
    assert text.startswith(str(tokenizer.tool_call_start))
    assert text.endswith(('{"at": "', "functions.look:", "look[CALL_ID]"))
    assert run == ids_of(tokenizer, text)


@pytest.mark.parametrize("name", few(SCHEMAS, every=3))
def test_every_schema(json_tools: TokenizerWrapper, name: str) -> None:
    schema = SCHEMAS[name]
    inside = schema if schema.get("type") == "object" else None
    if inside is None:
        own = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        inside = record(value={key: schema[key] for key in schema if key not in own}) | own
    one = use({"it": inside}, forced=True, single=True)
    for seed in range(2 if lanes.slow else 1):
        text, calls = read(json_tools, walk(mask(json_tools, one), json_tools, seed), one)
        assert (text, len(calls)) == ("", 1)
        assert valid(calls, {"it": inside})


def test_a_thought_may_come_before_a_forced_call(json_tools: TokenizerWrapper) -> None:
    of = mask(json_tools, use(TWO, forced=True, single=True), thinking=True)
    tokens = say(of, json_tools, 'Not a call: <tool_call>{"name": 1}. </think>')
    tokens += walk(of, json_tools, 1)
    text, calls = read(json_tools, tokens, use(TWO, single=True), thinking=True)
    assert text == ""
    assert valid(calls, TWO)
    assert len(calls) == 1
    opens, calls_marker = ids_of(json_tools, "<think>"), ids_of(json_tools, "<tool_call>")
    assert set(allowed(mask(json_tools, use(TWO, forced=True), may_think=True))) == {
        *opens,
        *calls_marker,
    }
    assert allowed(mask(json_tools, use(TWO, forced=True))) == calls_marker


# -- calls of strict functions in an answer that is free
# ---------------------------------------------------------


def test_prose_is_free_and_every_call_in_it_is_held(tokenizer: TokenizerWrapper) -> None:
    for seed in range(10):
        of = mask(tokenizer, STRICT)
        tokens: list[int] = []
        for _ in range(2):
            tokens += say(of, tokenizer, 'So {"a": 1}. ')
            assert of.bits() is None
            tokens += say(of, tokenizer, str(tokenizer.tool_call_start))
            assert only_token(of.bits()) not in tokenizer.eos_token_ids
            tokens += walk(of, tokenizer, seed)
        tokens += say(of, tokenizer, " Done.")
        assert of.advance(next(iter(tokenizer.eos_token_ids)))
        text, calls = read(tokenizer, tokens, STRICT)
        assert len(calls) >= 2
        assert valid(calls, TWO)
        assert text.startswith('So {"a": 1}.')
        assert text.endswith("Done.")


def test_only_the_strict_functions_are_held_to_their_schema(json_tools: TokenizerWrapper) -> None:
    of = mask(json_tools, use(TWO, strict=frozenset({"look"})))
    say(
        of,
        json_tools,
        '<tool_call>\n{"name": "get_weather", "arguments": {"anything": [1]}}\n</tool_call>',
    )
    say(of, json_tools, '<tool_call>\n{"name": "look", "arguments": {"')
    assert json_tools.decode(forced_tokens(of, 20)) == 'at": "'


def test_a_thought_holds_no_calls(json_tools: TokenizerWrapper) -> None:
    for preamble, first in (({"thinking": True}, ""), ({"may_think": True}, "<think>")):
        of = mask(json_tools, STRICT, **preamble)
        say(of, json_tools, first + "A <tool_call> is what")
        assert of.bits() is None
        say(of, json_tools, "</think>\n\n<tool_call>")
        assert json_tools.decode(forced_tokens(of, 20)) == '\n{"name": "'
    late = mask(json_tools, STRICT, may_think=True)
    say(late, json_tools, "No thought: <think> <tool_call>")
    assert late.bits() is not None


def test_a_call_in_the_place_of_an_answer_is_held(json_tools: TokenizerWrapper) -> None:
    of = grammars(json_tools)
    answer = of.compile(StructuredOutput(GrammarKind.CHOICE, '["yes"]', "form"))
    both = of.mask(answer, Preamble(may_call=True), of.compile_tool_calls(STRICT))
    say(both, json_tools, "<tool_call>")
    assert json_tools.decode(forced_tokens(both, 20)) == '\n{"name": "'
    both.rollback(1)
    say(both, json_tools, "yes")
    assert both.ended


@pytest.mark.parametrize("answer", [None, WEATHER])
@given(data=st.data())
def test_the_way_back_leads_to_where_it_came_from(
    json_tools: TokenizerWrapper, answer: Schema | None, data: st.DataObject
) -> None:
    of = mask(json_tools, STRICT, may_think=True)
    if answer is not None:
        compiler = grammars(json_tools)
        form = StructuredOutput(GrammarKind.JSON, json.dumps(answer), "form")
        of = compiler.mask(compiler.compile(form), Preamble(may_think=True, may_call=True))
    words = [
        *("<think>", "x</think>", "<tool_call>", "a", '{"city": "Oslo"'),
        *('\n{"name": "look", "arguments": {"at": "', '"}}\n</tool_call>'),
    ]
    pieces = [ids_of(json_tools, word) for word in words]
    seen = [(of.state, of.bits(), of.ended)]
    for _ in range(data.draw(st.integers(1, 16))):
        if len(seen) > 1 and data.draw(st.booleans()):
            n = data.draw(st.integers(1, len(seen) - 1))
            of.rollback(n)
            del seen[len(seen) - n :]
        else:
            may = [[token] for token in allowed(of)] if of.bits() is not None else []
            for token in data.draw(st.sampled_from(pieces) | st.sampled_from(may or pieces)):
                if of.advance(token):
                    seen.append((of.state, of.bits(), of.ended))
        assert (of.state, of.bits(), of.ended) == seen[-1]


# -- what binds nothing, and what is refused
# ---------------------------------------------------------------------


def test_nothing_binds_a_model_that_is_free(json_tools: TokenizerWrapper) -> None:
    assert grammars(json_tools).compile_tool_calls(use(TWO)) is None


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "strin"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}}, "nowhere"),
        (
            {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
            "unclosed group",
        ),
        ({"type": "string"}, "not object"),
        ({"allOf": [{"type": "string"}]}, "Unsatisfiable"),
        ({"properties": 3}, "properties must be an object"),
        ({"x-guidance": 3}, "expected struct JsonCompileOptions"),
        ({"$ref": "#"}, "never end"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "never end"),
    ],
)
@pytest.mark.parametrize("more", [{"forced": True}, {"strict": frozenset({"bad"})}])
def test_a_schema_that_cannot_be_enforced_is_refused_by_its_function(
    json_tools: TokenizerWrapper, schema: Schema, said: str, more: Any
) -> None:
    with pytest.raises(BadRequest) as caught:
        grammars(json_tools).compile_tool_calls(use({"good": WEATHER, "bad": schema}, **more))
    assert (caught.value.code, caught.value.param, caught.value.params["name"]) == (
        "tools.schema",
        "tools",
        "bad",
    )
    assert said in caught.value.message
    assert grammars(json_tools).compile_tool_calls(use({"good": WEATHER, "bad": schema})) is None


def test_unenforced_keywords_are_refused_of_strict_functions_alone(
    json_tools: TokenizerWrapper,
) -> None:
    schema = record(a={"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": True})
    with pytest.raises(BadRequest, match="uniqueItems"):
        grammars(json_tools).compile_tool_calls(use({"it": schema}, strict=frozenset({"it"})))
    one = use({"it": schema}, forced=True, single=True)
    _, ((_, arguments),) = read(json_tools, walk(mask(json_tools, one), json_tools, 1), one)
    assert arguments["a"] in ([], [1], [1, 1])


def test_a_schema_without_a_type_is_that_of_an_object(json_tools: TokenizerWrapper) -> None:
    one = use(
        {"it": {"properties": {"a": {"enum": [1]}}, "required": ["a"]}}, forced=True, single=True
    )
    assert str(json_tools.decode(forced_tokens(mask(json_tools, one), 200))).endswith(
        '"arguments": {"a": 1'
    )


@pytest.mark.parametrize("keyword", ["const", "minimum"])
def test_a_number_that_would_be_rounded_is_refused_of_strict_functions_alone(
    tokenizer: TokenizerWrapper, keyword: str
) -> None:
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_token_ids)
    schemas = {"look": record(["id"], id={"type": "integer", keyword: 2**53 + 1})}
    compiled = compiler.compile_tool_calls(use(schemas, forced=True))
    assert compiled is not None
    assert [str(2**53 + 1) in warning.message for warning in compiled.warnings] == [True]
    with pytest.raises(BadRequest, match=r"'look'.* 9007199254740993 would be rounded"):
        compiler.compile_tool_calls(use(schemas, forced=True, strict=frozenset(schemas)))
