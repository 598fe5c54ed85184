"""Calls of families whose arguments are neither one JSON object nor plain tags, held to their
functions: whatever may be said reads as calls whose arguments have their schema, and what is not
enforced is never silent.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import product
from typing import Any, Final

import jsonschema
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text.calls.markup import write_calls
from omlx.text.tools import ToolUse
from tests.lanes import few
from tests.schemas import SMALL, listed, record
from tests.text.calls import (
    FAMILIES,
    NULL,
    TEXT,
    grammars,
    ids_of,
    mask,
    read,
    say,
    use,
    valid,
    walk,
)

OTHERS: Final = ("qwen coder", "glm", "deepseek v3.2", "gemma 4", "minimax m3", "lfm2")
"""Families whose bounds and roots of schemas are tried."""
WRITTEN: Final = (
    *(*OTHERS[3:], "gemma 4, markers as text", "functiongemma", "kimi k3"),
    *("minimax m3, markers as text", "muse"),
)
"""Families that write values in ways of their own."""


@pytest.fixture(scope="module", params=WRITTEN)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    return FAMILIES[family].load(tmp_path_factory.mktemp("family"))


ARGUMENTS: Final[dict[str, Any]] = {
    "text": 'a "b", c="d", n=5) \\ \n }],{ <x> 日本',
    "escaped": 'print("a", end="")]',
    "number": 12345678901234567890123,
    "none": None,
    "flags": [True, False, None],
    "nested": {"a": [{"b": "x, y"}], "c": {}},
    "like": "5",
}


def test_given_calls_are_written_as_they_are_read_and_may_be_said(model: TokenizerWrapper) -> None:
    plain = {"type": "object", "properties": {"a": listed(record(b=TEXT)), "c": record()}}
    schema = record(
        text=TEXT,
        escaped=TEXT,
        number={"type": "integer"},
        none={"type": "null"},
        flags=listed({"type": ["boolean", "null"]}),
        nested={**plain, "required": ["a", "c"]},
        like=TEXT,
    )
    one = use({"it": schema}, forced=True, single=True)
    call = {"id": "call_1", "function": {"name": "it", "arguments": ARGUMENTS}}
    of = mask(model, one)
    tokens = say(of, model, write_calls(model, [call]))
    assert of.ended
    assert read(model, tokens, one) == ("", [("it", ARGUMENTS)])


@pytest.mark.parametrize("family", ["lfm2"], indirect=True)
def test_lfm2_writes_calls_as_python(model: TokenizerWrapper) -> None:
    calls = [
        {"id": "1", "function": {"name": "look", "arguments": {"at": 'a "b"', "n": [1, None]}}},
        {"id": "2", "function": {"name": "wait", "arguments": {}}},
    ]
    assert write_calls(model, calls) == (
        '<|tool_call_start|>[look(at="a \\"b\\"", n=[1, null]), wait()]<|tool_call_end|>'
    )


@pytest.mark.parametrize(
    ("family", "schema", "said"),
    [
        ("lfm2", record(**{"a b": TEXT}), "a b"),
        ("gemma 4", record(a={"prefixItems": [TEXT], "type": "array"}), "differ by place"),
    ],
    indirect=["family"],
)
def test_what_cannot_be_written_is_refused(
    family: str, model: TokenizerWrapper, schema: Any, said: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        grammars(model).compile_tool_calls(use({"bad": schema}, strict=frozenset({"bad"})))
    assert (caught.value.code, caught.value.params["name"]) == ("tools.schema", "bad")
    assert said in caught.value.message


def forced(schema: Any) -> ToolUse:
    return use({"it": schema}, forced=True, single=True)


def may_say(model: TokenizerWrapper, schema: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments may be said; if so, it is read as that."""
    call = {"id": "call_1", "function": {"name": "it", "arguments": arguments}}
    tokens = ids_of(model, write_calls(model, [call]))
    of = mask(model, forced(schema))
    if not all(of.advance(token) for token in tokens):
        return False
    assert read(model, tokens, forced(schema)) == ("", [("it", arguments)])
    return of.ended


BOUNDED: Final = [
    ({"minLength": 2, "maxLength": 4}, ["ab", "日本語x"], ["", "a", "abcde"]),
    ({"pattern": "^[A-Z]+$"}, ["A", "ABC"], ["", "aB", "Ab"]),
    ({"pattern": "b+/"}, ["ab/c", "b/"], ["", "ab"]),
    ({"pattern": "^a|b$"}, ["ax", "xb"], ["xa", "bx"]),
    ({"pattern": "^(a|[/|^$]{2})*$"}, ["", "a", "|^", "/$a"], ["|", "b"]),
    ({"format": "date"}, ["2026-02-03"], ["2026-02-30", "today", ""]),
    ({"format": "uuid"}, ["0b41f5a6-7e26-4a53-9c3c-1a2b3c4d5e6f"], ["0b41f5a6"]),
    ({"format": "date-time"}, ["2026-02-03T10:20:30Z"], ["2026-02-03"]),
    ({"format": "email"}, ["a.b@example.org"], ["a.b", "@"]),
]


CASES: Final = [(family, *each) for family in OTHERS for each in BOUNDED]


@pytest.mark.parametrize(
    ("family", "bounds", "good", "bad"), few(CASES, every=4), indirect=["family"]
)
def test_bounds_of_texts_are_enforced(
    model: TokenizerWrapper, bounds: Any, good: list[str], bad: list[str]
) -> None:
    within = [
        record(a={**TEXT, **bounds}),
        record(["a"], {"$defs": {"b": {**TEXT, **bounds}}}, a={"$ref": "#/$defs/b"}),
        record(a={"anyOf": [{**TEXT, **bounds}, NULL]}),
    ]
    for schema in within:
        assert [text for text in good if not may_say(model, schema, {"a": text})] == []
        assert [text for text in bad if may_say(model, schema, {"a": text})] == []


SPOT: Final = record(["x"], x=SMALL, name={**TEXT, "maxLength": 5})
ROOTS: Final[dict[str, Any]] = {
    "reference": {"$ref": "#/$defs/spot", "$defs": {"spot": SPOT}},
    "alternatives": {
        "anyOf": [
            record(kind={"const": "spot"}, x=SMALL),
            record(kind={"const": "place"}, name={**TEXT, "maxLength": 5}),
        ]
    },
    "alternatives beside properties": {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}},
        "required": ["kind"],
        "oneOf": [
            {"properties": {"kind": {"const": "a"}, "x": SMALL}, "required": ["x"]},
            {"properties": {"kind": {"const": "b"}, "y": SMALL}, "required": ["y"]},
        ],
    },
    "all of": {
        "allOf": [
            {"$ref": "#/definitions/spot"},
            {"type": "object", "properties": {"x": {"minimum": 50}}, "required": ["name"]},
        ],
        "definitions": {"spot": SPOT},
    },
    "itself": record(["x"], x=SMALL, next={"$ref": "#"}),
    "a map": {"type": "object", "additionalProperties": SMALL, "maxProperties": 9},
}
SAID: Final[dict[str, tuple[list[Any], list[Any]]]] = {
    "reference": ([{"x": 1, "name": "a"}], [{}, {"name": "a"}, {"x": 1, "name": "abcdef"}]),
    "alternatives": (
        [{"kind": "spot", "x": 1}, {"kind": "place", "name": "5"}],
        [{"kind": "spot", "name": "a"}, {"kind": "place"}, {}],
    ),
    "alternatives beside properties": (
        [{"kind": "a", "x": 1}, {"kind": "b", "y": 2}],
        [{"kind": "a"}, {"kind": "b", "x": 1}, {}],
    ),
    "all of": ([{"x": 50, "name": "a"}], [{"x": 1, "name": "a"}, {"x": 50}]),
    "itself": ([{"x": 1}, {"x": 1, "next": {"x": 2}}], [{}, {"x": 1, "next": {"x": 200}}]),
    "a map": ([{}, {"some": 3}], [{"some": 200}, {"some": "a"}]),
}


@pytest.mark.parametrize(
    ("family", "root"), few(product(OTHERS, ROOTS), every=5), indirect=["family"]
)
def test_the_root_of_a_schema_is_enforced(model: TokenizerWrapper, family: str, root: str) -> None:
    schema = ROOTS[root]
    good, bad = SAID[root]
    written = [arguments for arguments in good if may_say(model, schema, arguments)]
    # MiniMax-M3 writes as JSON what elements do not express.
    assert written == good or family == "minimax m3"
    assert [arguments for arguments in bad if may_say(model, schema, arguments)] == []
    for seed in range(4):
        tokens = walk(mask(model, forced(schema)), model, seed, FAMILIES[family].closing)
        text, calls = read(model, tokens, forced(schema))
        assert (text, len(calls)) == ("", 1), model.decode(tokens)
        assert valid(calls, {"it": schema})


@pytest.mark.parametrize("family", ["qwen coder", "glm", "deepseek v3.2", "lfm2"], indirect=True)
def test_a_number_out_of_range_within_an_object_loses_no_call(model: TokenizerWrapper) -> None:
    schema = record(a=record(b={"type": "number"}))
    call = {"id": "call_1", "function": {"name": "it", "arguments": {"a": {"b": 12.5}}}}
    text = write_calls(model, [call]).replace("12.5", "-12e999")
    _, ((name, arguments),) = read(model, ids_of(model, text), forced(schema))
    assert name == "it"
    assert arguments == {"a": {"b": -sys.float_info.max}}


UNHELD: Final = {
    "qwen coder": [
        (record(a={**TEXT, "pattern": "a(^b)"}), "lookarounds not supported"),
        (record(a={**TEXT, "maxLength": 100_000}), "100"),
        (record(a={**TEXT, "format": "ipv6"}), "format 'ipv6'"),
        ({"anyOf": [record(a=TEXT), record(a=SMALL)]}, "'a' has other types"),
        (record([], {"minProperties": 1}, a=TEXT, b=TEXT), "minProperties"),
    ],
    "gemma 4": [
        (record(a={**TEXT, "format": "ipv6"}), "format 'ipv6'"),
        (record(a=record([], {"minProperties": 1}, b=TEXT, c=TEXT)), "minProperties"),
    ],
}


@pytest.mark.parametrize("family", UNHELD, indirect=True)
def test_what_is_not_enforced_is_refused_of_strict_functions_and_else_a_warning(
    model: TokenizerWrapper, family: str
) -> None:
    for schema, detail in UNHELD[family]:
        jsonschema.Draft202012Validator.check_schema(schema)
        with pytest.raises(BadRequest) as caught:
            grammars(model).compile_tool_calls(use({"it": schema}, strict=frozenset({"it"})))
        assert (caught.value.code, caught.value.params["name"]) == ("tools.schema", "it")
        assert detail in caught.value.message
        compiled = grammars(model).compile_tool_calls(forced(schema))
        assert compiled is not None
        (warning,) = compiled.warnings
        assert (warning.code, detail in warning.message) == ("format.relaxed", True)
        assert warning.message.count(detail) == 1


def nested(depth: int) -> Any:
    schema: Any = {**TEXT, "maxLength": 3}
    for _ in range(depth):
        schema = {"anyOf": [schema, NULL]}
    return record(a=schema)


@pytest.mark.parametrize("family", ["qwen coder", "gemma 4"], indirect=True)
def test_alternatives_within_alternatives_are_enforced_or_refused(model: TokenizerWrapper) -> None:
    assert may_say(model, nested(20), {"a": "abc"})
    assert not may_say(model, nested(20), {"a": "abcd"})
    for depth in (450, 700):
        with pytest.raises(BadRequest) as caught:
            grammars(model).compile_tool_calls(forced(nested(depth)))
        assert caught.value.code == "tools.schema"


@pytest.mark.parametrize("family", ["qwen coder"], indirect=True)
def test_many_constants_are_the_only_texts(model: TokenizerWrapper) -> None:
    schema = record(a={"anyOf": [{"const": f"c{number}"} for number in range(100)]})
    assert may_say(model, schema, {"a": "c99"})
    assert not may_say(model, schema, {"a": "c100"})


@pytest.mark.parametrize("family", OTHERS, indirect=True)
def test_any_optional_arguments_may_be_said(model: TokenizerWrapper) -> None:
    schema = record(["b"], a=TEXT, b=SMALL, c=TEXT, d={"type": "boolean"})
    whole = {"a": "x", "b": 1, "c": "y", "d": True}
    for names in ("b", "ab", "bd", "bcd", "abcd"):
        assert may_say(model, schema, {name: whole[name] for name in names}), names
