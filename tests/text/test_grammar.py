"""Forms made into masks over a real tokenizer: what may come, what must, what is refused, and the
way back.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import forced_tokens, only_token
from omlx.errors import BadRequest
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.text.grammar import GrammarCompiler, GrammarKind, Preamble, StructuredOutput
from omlx.text.mask import GrammarMask
from tests import lanes
from tests.lanes import few
from tests.schemas import SCHEMAS
from tests.text.calls import allowed, ids_of, spoken

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

ROUND_ABOUT = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "required": ["a"],
    "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}},
}


def chain(reference: str) -> str:
    """A schema whose definitions refer to one another, in a row."""
    definitions = [f'"d{i}": {{{reference % (i + 1)}}}' for i in range(3000)]
    return f'{{"$ref": "#/$defs/d0", "$defs": {{{", ".join(definitions)}, "d3000": {{}}}}}}'


def rules(count: int) -> str:
    lines = [f'r{i}: r{i + 1} | r{i} "a"' for i in range(count)]
    return "\n".join(["start: r0", *lines, f'r{count}: "b"'])


@pytest.fixture(scope="module")
def tokenizer() -> TokenizerWrapper:
    return read_tokenizer(ModelEntry("demo", BUNDLED / "omlx-demo/target", "bundled"))


@pytest.fixture(scope="module")
def grammars(tokenizer: TokenizerWrapper) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


def mask(
    grammars: GrammarCompiler,
    kind: GrammarKind,
    value: Any,
    preamble: Preamble | None = None,
    **more: Any,
) -> GrammarMask:
    text = value if isinstance(value, str) else json.dumps(value)
    return grammars.mask(
        grammars.compile(StructuredOutput(kind, text, "form", **more)), preamble or Preamble()
    )


@pytest.mark.parametrize("name", few(SCHEMAS, every=3))
def test_whatever_a_mask_allows_is_valid(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper, name: str
) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    for seed in range(3 if lanes.slow else 1):
        text = spoken(mask(grammars, GrammarKind.JSON, SCHEMAS[name]), tokenizer, seed)
        jsonschema.validate(json.loads(text), SCHEMAS[name])


def test_what_must_come_is_spelled_as_the_tokenizer_spells_it(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.JSON, PERSON)
    run = forced_tokens(of, 64)
    assert tokenizer.decode(run) == '{"name":'
    assert list(run) == ids_of(tokenizer, '{"name":')


def test_an_answer_is_over_where_nothing_may_follow(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.CHOICE, ["yes", "no"])
    for token in ids_of(tokenizer, "yes"):
        assert not of.ended
        assert of.advance(token)
    assert of.ended
    assert not of.advance(ids_of(tokenizer, "x")[0])


def test_where_more_may_follow_the_model_decides(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.REGEX, "[0-9]+")
    stop = tokenizer.eos_token_id
    assert stop not in allowed(of)
    assert of.advance(ids_of(tokenizer, "7")[0])
    assert not of.ended
    assert stop in allowed(of)
    assert of.advance(stop)
    of.rollback(2)
    assert stop not in allowed(of)


def test_a_token_that_may_not_come_changes_nothing(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.JSON, PERSON)
    before = of.bits()
    assert not of.advance(ids_of(tokenizer, "x")[0])
    assert of.bits() == before


@pytest.mark.parametrize(
    ("kind", "value", "texts"),
    [
        (GrammarKind.REGEX, "(ab|cd){2}", {"abab", "abcd", "cdab", "cdcd"}),
        (
            GrammarKind.CHOICE,
            ["größer", "日本", 'say "no"', "🙂"],
            {"größer", "日本", 'say "no"', "🙂"},
        ),
        (GrammarKind.CHOICE, ["one"], {"one"}),
        (
            GrammarKind.GRAMMAR,
            'start: greeting " " name\ngreeting: "hi" | "ho"\nname: "a" | "b"',
            None,
        ),
        (
            GrammarKind.GRAMMAR,
            'root ::= greeting " " name\ngreeting ::= "hi" | "ho"\nname ::= [ab]',
            None,
        ),
    ],
)
def test_other_forms(
    grammars: GrammarCompiler,
    tokenizer: TokenizerWrapper,
    kind: GrammarKind,
    value: Any,
    texts: set[str] | None,
) -> None:
    texts = texts or {"hi a", "hi b", "ho a", "ho b"}
    assert {spoken(mask(grammars, kind, value), tokenizer, seed) for seed in range(60)} == texts


# -- what may come before an answer
# ------------------------------------------------------------------------------


def test_a_thought_that_the_prompt_has_opened_is_free_up_to_its_end(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.JSON, PERSON, Preamble(thinking=True))
    for token in ids_of(tokenizer, 'so {"x": 1} it is'):
        assert of.advance(token)
    assert not of.advance(next(iter(tokenizer.eos_token_ids))), "an answer is due"
    assert of.advance(tokenizer.think_end_tokens[0])
    (one,), (two,), opening = (
        ids_of(tokenizer, "\n"),
        ids_of(tokenizer, "\n\n"),
        ids_of(tokenizer, '{"')[0],
    )
    assert set(allowed(of)) == {opening, one, two}
    assert of.advance(two)
    assert allowed(of) == [opening]
    of.rollback(1)
    assert of.advance(one)
    assert set(allowed(of)) == {opening, one}
    assert of.advance(one)
    assert allowed(of) == [opening]
    of.rollback(3)
    assert len(allowed(of)) > 1000


def test_a_model_may_open_a_thought_itself_or_answer_at_once(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.JSON, PERSON, Preamble(may_think=True))
    (opens,), opening = tokenizer.think_start_tokens, ids_of(tokenizer, '{"')[0]
    assert set(allowed(of)) == {opens, opening}
    assert of.advance(opens)
    assert of.advance(ids_of(tokenizer, "x")[0])
    of.rollback(2)
    assert of.advance(opening)
    assert opens not in allowed(of)


def test_a_call_may_come_in_the_place_of_an_answer(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.JSON, PERSON, Preamble(thinking=True, may_call=True))
    (call,) = ids_of(tokenizer, "<tool_call>")
    assert of.advance(tokenizer.think_end_tokens[0])
    assert call in allowed(of)
    assert of.advance(call)
    assert of.bits() is None
    assert of.advance(next(iter(tokenizer.eos_token_ids)))
    assert not of.ended


def test_markers_of_several_tokens(bpe: TokenizerWrapper) -> None:
    class Wordy:
        """A tokenizer whose thoughts stand between words."""

        _tokenizer = bpe._tokenizer
        chat_template = ""
        response_initial_state = None
        has_thinking = True
        think_start, think_end = "<a>", "</a>"
        think_start_tokens = tuple(ids_of(bpe, "<a>"))
        think_end_tokens = tuple(ids_of(bpe, "</a>"))

    of = GrammarCompiler(Wordy(), bpe.eos_token_ids)
    grammar = of.compile(StructuredOutput(GrammarKind.CHOICE, '["yes"]', "form"))
    answer = of.mask(grammar, Preamble(may_think=True))
    for at, token in enumerate(ids_of(bpe, "<a>")):
        assert token in allowed(answer)
        assert at == 0 or only_token(answer.bits()) == token
        assert answer.advance(token)
    for token in ids_of(bpe, "</ so </a>yes"):
        assert answer.advance(token)
    assert answer.ended


def test_an_answer_prefix_is_continued(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.JSON, PERSON, Preamble(answer_prefix='{"name": "Ada", '))
    assert tokenizer.decode(forced_tokens(of, 64)) == '"age":'
    with pytest.raises(BadRequest) as caught:
        mask(grammars, GrammarKind.JSON, PERSON, Preamble(answer_prefix="Well, "))
    assert (caught.value.code, caught.value.param) == ("format.begun", "form")


# -- what is refused
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (GrammarKind.JSON, '{"type": "strin"}', "strin"),
        (GrammarKind.JSON, '{"type": "object", "properties": 3}', "properties must be an object"),
        (GrammarKind.JSON, '{"$ref": "#/$defs/nowhere"}', "/$defs/nowhere"),
        (GrammarKind.JSON, '{"$ref": "https://example.org/schema"}', "example.org"),
        (GrammarKind.JSON, '{"type": "string", "pattern": "("}', "unclosed group"),
        (GrammarKind.JSON, '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        (
            GrammarKind.JSON,
            '{"type": "integer", "minimum": 5, "maximum": 3}',
            "minimum (5) is greater",
        ),
        (GrammarKind.JSON, '{"enum": []}', "Unsatisfiable"),
        (GrammarKind.JSON, "false", "object"),
        (GrammarKind.JSON, "[]", "object"),
        (GrammarKind.JSON, '{"type": ', "EOF"),
        (GrammarKind.JSON, '{"items": ' * 3000 + "{}" + "}" * 3000, "recursion"),
        (GrammarKind.REGEX, "(ab", "unclosed group"),
        (GrammarKind.GRAMMAR, "start: (", "Expected token"),
        (GrammarKind.GRAMMAR, 'start: "a" | missing', "missing"),
        (GrammarKind.GRAMMAR, "root ::= (", "Expected"),
        (GrammarKind.GRAMMAR, "neither", "Expected"),
        (GrammarKind.GRAMMAR, "root ::= a-b", "'a-b' not found"),
        (GrammarKind.GRAMMAR, 'x ::= "a"', "No 'root' rule"),
        (GrammarKind.GRAMMAR, "root ::= [\\", "out of range"),
        (GrammarKind.GRAMMAR, "root ::= " + "(" * 400 + '"a"' + ")" * 400, "recursion"),
        # Compiling holds Python's lock, so its cost is limited.
        (GrammarKind.REGEX, "|".join(str(7919 * i) for i in range(28_000)), "too big"),
        (GrammarKind.REGEX, "(a{1000}){1000}", "too many"),
        # Compiling these would overflow the stack, and end the process.
        (GrammarKind.JSON, chain('"allOf": [{"$ref": "#/$defs/d%d"}]'), "nested deeper"),
        (GrammarKind.JSON, chain('"properties": {"a": {"$ref": "#/$defs/d%d"}}'), "nested deeper"),
        (GrammarKind.JSON, chain('"items": {"\\u0024ref": "#/$defs/d%d"}'), "nested deeper"),
        (GrammarKind.GRAMMAR, rules(4000), "rules exceed"),
        (GrammarKind.JSON, '{"$ref": "#"}', "never end"),
        (GrammarKind.JSON, '{"anyOf": [{"$ref": "#"}]}', "never end"),
        (GrammarKind.JSON, json.dumps(ROUND_ABOUT), "never end"),
        (GrammarKind.JSON, '{"type": "array", "items": {"$ref": "#"}, "minItems": 1}', "never end"),
        (GrammarKind.REGEX, r"a[^\s\S]", "nothing has this form"),
        (GrammarKind.GRAMMAR, "root ::= root", "nothing has this form"),
        (GrammarKind.GRAMMAR, 'start: start "a"', "nothing has this form"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_enforced_is_refused_saying_why(
    grammars: GrammarCompiler, kind: GrammarKind, text: str, said: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        grammars.compile(StructuredOutput(kind, text, "the.field", strict=True))
    assert (caught.value.code, caught.value.param) == ("format.invalid", "the.field")
    assert said in caught.value.message
    assert len(caught.value.message) < 400


def test_a_form_is_compiled_once(grammars: GrammarCompiler) -> None:
    words = StructuredOutput(GrammarKind.CHOICE, '["yes", "no"]', "guided_choice")
    assert grammars.compile(words) is grammars.compile(words)


def test_a_lenient_schema_may_hold_unenforced_keywords(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    schema = {"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": True}
    assert json.loads(spoken(mask(grammars, GrammarKind.JSON, schema), tokenizer, 1)) in (
        [],
        [1],
        [1, 1],
    )


def test_the_schema_that_says_nothing_is_any_value(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    of = mask(grammars, GrammarKind.JSON, True)
    assert all(of.advance(token) for token in ids_of(tokenizer, '[{"a": 1}, null]'))
    assert of.ended


def test_a_schema_may_choose_its_white_space(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    tight = {"item_separator": ",", "key_separator": ":"}
    of = mask(grammars, GrammarKind.JSON, {"const": {"a": [1, 2]}, "x-guidance": tight})
    assert spoken(of, tokenizer, 1) == '{"a":[1,2]}'
    assert (
        spoken(mask(grammars, GrammarKind.JSON, {"const": {"a": [1, 2]}}), tokenizer, 1)
        == '{"a": [1, 2]}'
    )


WEAK: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "array", "maxItems": 1, "uniqueItems": True}, "uniqueItems", "[]"),
    ({"type": "string", "format": "password", "maxLength": 1}, "password", '"a"'),
    ({"type": "string", "pattern": "^(?!a)", "maxLength": 1}, "look-ahead", '"a"'),
    ({"type": "string", "pattern": "^P(?=.)", "maxLength": 1}, "look-ahead", '"a"'),
    (
        {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": False},
        "propertyNames",
        "{}",
    ),
    ({"items": {"$ref": "https://example.org/a"}, "type": "array"}, "example.org", "[]"),
    (
        {
            "$ref": "#/$defs/A",
            "$defs": {
                "A": {
                    "properties": {"a": {"$ref": "#/$defs/A", "minProperties": 1}},
                    "type": "object",
                }
            },
        },
        "#/$defs/A",
        '{"a": {}}',
    ),
    ({"enum": [123456789012345678]}, "123456789012345678", "123456789012345678"),
]


@pytest.mark.parametrize(("schema", "named", "text"), WEAK)
def test_what_a_schema_cannot_enforce_is_a_warning_unless_it_is_strict(
    grammars: GrammarCompiler,
    tokenizer: TokenizerWrapper,
    schema: dict[str, Any],
    named: str,
    text: str,
) -> None:
    output = StructuredOutput(GrammarKind.JSON, json.dumps(schema), "the.field")
    compiled = grammars.compile(output)
    (warning,) = compiled.warnings
    assert (warning.code, warning.params["field"]) == ("format.relaxed", "the.field")
    assert named in warning.message
    assert "\n" not in warning.message
    of = grammars.mask(compiled, Preamble())
    assert all(of.advance(token) for token in ids_of(tokenizer, text))
    with pytest.raises(BadRequest):
        grammars.compile(replace(output, strict=True))


def test_the_rest_of_a_schema_is_enforced(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper
) -> None:
    schema = {"type": "string", "pattern": "^(?!a)", "minLength": 2, "maxLength": 3}
    of = mask(grammars, GrammarKind.JSON, schema)
    said = json.loads(spoken(of, tokenizer, 1))
    assert 2 <= len(said) <= 3


@pytest.mark.parametrize("schema", [{}, {"pattern": "^2"}, {"pattern": "^2", "allOf": [{}]}])
@pytest.mark.parametrize("strict", [False, True])
def test_a_time_has_no_leap_second(
    grammars: GrammarCompiler, tokenizer: TokenizerWrapper, schema: dict[str, Any], strict: bool
) -> None:
    schema = {"type": "string", "format": "date-time"} | schema
    for second, ok in (("59", True), ("60", False)):
        of = mask(grammars, GrammarKind.JSON, schema, strict=strict)
        text = f'"2026-11-22T10:00:{second}Z"'
        assert all(of.advance(token) for token in ids_of(tokenizer, text)) is ok
