"""What never ends is found by its meaning, and no answer can be led into it."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from typing import Any, Final

import jsonschema
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import only_token
from omlx.errors import BadRequest
from omlx.text.grammar import GrammarCompiler, GrammarKind, Preamble, StructuredOutput
from omlx.text.schema_limits import (
    MAX_DEPTH,
    MAX_PATTERNS,
    check_depth,
    prune_nonterminating,
    relax,
)
from tests.schemas import REFERENCES, SMALL, listed, record
from tests.text.calls import spoken

ENDLESS: Final = {"$ref": "#/$defs/endless"}
DEFS: Final = {
    "$defs": {
        "endless": record(choice={"enum": ["a", "b"]}, more={"$ref": "#/$defs/round"}),
        "round": {"anyOf": [{"$ref": "#/$defs/endless"}, listed({"$ref": "#/$defs/round"}, 1, 2)]},
    }
}
"""A choice at every step, so that nothing must come for ever."""

PRUNED: Final[dict[str, dict[str, Any]]] = {
    "an alternative": {"anyOf": [SMALL, ENDLESS]},
    "one of two": {"oneOf": [SMALL, ENDLESS]},
    "an optional property": record(["a"], a=SMALL, b=ENDLESS),
    "items": record(a=listed(ENDLESS)),
    "a prefix": {"type": "array", "prefixItems": [SMALL, ENDLESS], "minItems": 1, "items": False},
    "further properties": record(["a"], {"additionalProperties": ENDLESS}, a=SMALL),
    "inside": record(a={"anyOf": [record(b=ENDLESS), listed(SMALL, 1, 1)]}),
    "by way of a definition": {
        "$ref": "#/$defs/way",
        "$defs": {**DEFS["$defs"], "way": {"anyOf": [SMALL, ENDLESS]}},
    },
    "a kind": {"type": ["integer", "object"], "minimum": 0, "maximum": 9}
    | {"properties": {"a": ENDLESS}, "required": ["a"], "additionalProperties": False},
    "a name that is a keyword": record(["a"], a=SMALL, const=ENDLESS, enum=ENDLESS),
    "data": record(["a"], a={"const": {"$ref": "#/$defs/endless"}}, b=ENDLESS),
}
REFUSED: Final[dict[str, dict[str, Any]]] = {
    "itself": ENDLESS,
    "every alternative": {"anyOf": [ENDLESS, listed(ENDLESS, 2, 3)]},
    "a property": record(a=SMALL, b=ENDLESS),
    "an item": listed(ENDLESS, 1, 2),
    "a second item": {"type": "array", "prefixItems": [SMALL], "items": ENDLESS, "minItems": 2},
    "all of": {"allOf": [record(["a"], {"additionalProperties": True}, a=SMALL), ENDLESS]},
    "any property": {"type": "object", "required": ["x"], "additionalProperties": {"$ref": "#"}},
}


@pytest.fixture(scope="module")
def grammars(bpe: TokenizerWrapper) -> GrammarCompiler:
    return GrammarCompiler(bpe, bpe.eos_token_ids)


def form(schema: object) -> StructuredOutput:
    return StructuredOutput(GrammarKind.JSON, json.dumps(schema), "form")


@pytest.mark.parametrize("name", PRUNED)
def test_no_answer_is_led_to_where_nothing_ends(
    grammars: GrammarCompiler, bpe: TokenizerWrapper, name: str
) -> None:
    schema = {**DEFS, **PRUNED[name]}
    grammar = grammars.compile(form(schema))
    for seed in range(20):
        text = spoken(grammars.mask(grammar, Preamble()), bpe, seed)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_without_an_answer_that_ends_is_refused(
    grammars: GrammarCompiler, name: str
) -> None:
    with pytest.raises(BadRequest, match="never end"):
        grammars.compile(form({**DEFS, **REFUSED[name]}))


@pytest.mark.parametrize("name", REFERENCES)
def test_what_can_end_is_left_alone(name: str) -> None:
    assert prune_nonterminating(REFERENCES[name]) is REFERENCES[name]


def test_what_is_pruned_is_a_copy() -> None:
    schema = {**DEFS, "anyOf": [SMALL, ENDLESS], "examples": [ENDLESS]}
    before = json.dumps(schema)
    assert prune_nonterminating(schema) | {"$defs": {}} == {
        "$defs": {},
        "anyOf": [SMALL, False],
        "examples": [ENDLESS],
    }
    assert json.dumps(schema) == before


def test_an_end_that_is_found_late_counts() -> None:
    """The reference that is evaluated first sees only the way back, whichever it is."""
    names = [f"d{i}" for i in range(8)]
    ways = {
        one: {"anyOf": [record(x={"$ref": f"#/$defs/{two}"}) for two in names]} for one in names[1:]
    }
    schema = record(x={"$ref": "#/$defs/d3"}) | {
        "$defs": {**ways, "d0": {"anyOf": [{"$ref": "#/$defs/d7"}, SMALL]}}
    }
    assert prune_nonterminating(schema) is schema


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/a~1b",
        "#/%24defs/a~1b",
        "#/$defs/list/anyOf/1",
        "#/$defs/nowhere",
        "#anchor",
        "other.json",
    ],
)
def test_pointers(reference: str) -> None:
    inside = record(x={"$ref": reference})
    schema = {
        "anyOf": [SMALL, {"$ref": reference}],
        "$defs": {"a/b": inside, "list": {"anyOf": [SMALL, inside]}},
    }
    endless = reference.startswith(("#/$defs/a", "#/%24", "#/$defs/list"))
    assert (prune_nonterminating(schema)["anyOf"][1] is False) == endless


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 3, "required": 3, "anyOf": 3, "type": 3, "$ref": 3},
        {"type": "array", "items": 3, "minItems": "x", "x": {"$ref": "#/nowhere"}},
        {"type": ["object", 3], "required": [3, {}], "properties": {"a": 3}},
        [],
        True,
    ],
)
def test_what_is_no_schema_is_left_to_others(schema: Any) -> None:
    assert prune_nonterminating(schema) == schema


def test_a_chain_that_is_too_long_is_refused() -> None:
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    with pytest.raises(ValueError, match="recursion"):
        prune_nonterminating({"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": SMALL}})


def test_of_what_never_ends_nothing_must_come(grammars: GrammarCompiler) -> None:
    of = grammars.mask(
        grammars.compile(form({**DEFS, "anyOf": [{"const": 7}, ENDLESS]})), Preamble()
    )
    assert only_token(of.bits()) is not None


AHEAD = "^(?!a)"


def error(pattern: str) -> str | None:
    return "look-ahead" if "(?!" in pattern else None


@pytest.mark.parametrize(
    ("schema", "relaxed", "removed"),
    [
        (
            {"type": "string", "pattern": AHEAD, "minLength": 2},
            {"type": "string", "minLength": 2},
            [f"pattern '{AHEAD}' (look-ahead)"],
        ),
        ({"pattern": "^a"}, {"pattern": "^a"}, []),
        (
            {"patternProperties": {AHEAD: {"type": "string"}, "^a": {"pattern": AHEAD}}},
            {"patternProperties": {"^a": {}}},
            [f"pattern '{AHEAD}' (look-ahead)"],
        ),
        # Names of properties and data that look like keywords stay.
        (
            {"properties": {"pattern": {"const": {"pattern": AHEAD}}}},
            {"properties": {"pattern": {"const": {"pattern": AHEAD}}}},
            [],
        ),
        (
            {"items": {"$ref": "https://example.org/a.json", "minLength": 1}},
            {"items": {"minLength": 1}},
            ["$ref 'https://example.org/a.json'"],
        ),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"items": {"$ref": "#/$defs/A", "title": "x"}}}},
            {"$ref": "#/$defs/A", "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}},
            ["keywords beside $ref '#/$defs/A'"],
        ),
        (
            {"items": {"$ref": "#/$defs/A", "minLength": 1}, "$defs": {"A": {"type": "string"}}},
            {"items": {"$ref": "#/$defs/A", "minLength": 1}, "$defs": {"A": {"type": "string"}}},
            [],
        ),
        (
            {"items": {"enum": [1, -(2**53) - 1]}, "const": {"a": [2**53]}},
            {"items": {}, "const": {"a": [2**53]}},
            ["enum -9007199254740993 (would be rounded)"],
        ),
        (
            {"minimum": 2**53 + 1, "maximum": 2**53 + 4, "exclusiveMaximum": 2**53 + 6},
            {"maximum": 2**53 + 4},
            [
                "minimum 9007199254740993 (would be rounded)",
                "exclusiveMaximum 9007199254740998 (would be rounded)",
            ],
        ),
        (
            {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
            {"type": "integer", "maximum": 2**63 - 1},
            ["minimum -9223372036854775808 (would be rounded)"],
        ),
        (
            {"type": "number", "minimum": -3.4e38, "maximum": 2**63 - 1},
            {"type": "number"},
            [
                "minimum -3.4e+38 (would be rounded)",
                "maximum 9223372036854775807 (would be rounded)",
            ],
        ),
        ({"minimum": "1" * 20, "maximum": True}, {"minimum": "1" * 20, "maximum": True}, []),
        (True, True, []),
    ],
)
def test_what_cannot_be_enforced_is_removed_and_named(
    schema: Any, relaxed: Any, removed: list[str]
) -> None:
    given = copy.deepcopy(schema)
    assert relax(schema, error) == (relaxed, removed)
    assert schema == given


def test_patterns_are_tried_once_each_and_only_so_many() -> None:
    tried: list[str] = []

    def count(pattern: str) -> None:
        tried.append(pattern)

    many = {"anyOf": [{"pattern": f"^{number}"} for number in range(MAX_PATTERNS)] * 2}
    assert relax(many, count) == (many, [])
    assert len(tried) == MAX_PATTERNS
    with pytest.raises(ValueError, match="patterns"):
        relax({"anyOf": [*many["anyOf"], {"pattern": "one more"}]}, count)


def lists(depth: int) -> Any:
    nested: Any = {}
    for _ in range(depth):
        nested = [nested]
    return nested


def test_depth_counts_levels_along_references() -> None:
    half = MAX_DEPTH // 2
    definitions = {"deep": lists(half - 3)}
    check_depth({"items": {"$ref": "#/$defs/deep"}, "$defs": definitions})
    with pytest.raises(ValueError, match="deeper"):
        check_depth({"items": [lists(half)], "allOf": lists(MAX_DEPTH)})


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_references_does_not_matter(order: int) -> None:
    names = [f"d{i}" for i in range(MAX_DEPTH)]
    definitions: dict[str, Any] = {
        name: {"items": {"$ref": f"#/$defs/{following}"}} for name, following in pairwise(names)
    }
    options = [{"$ref": f"#/$defs/{name}"} for name in names[::order]]
    with pytest.raises(ValueError, match="deeper"):
        check_depth({"anyOf": options, "$defs": {**definitions, names[-1]: {}}})


def test_recursive_schemas_have_a_depth() -> None:
    node = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    check_depth(node)
    check_depth({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})
