"""Calls whose arguments stand between tags, over real tokenizers: whatever may be said reads as
calls of what may be called, with arguments that have their schema as far as it can be held.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import forced_tokens
from omlx.errors import BadRequest
from omlx.text.tools import ToolUse
from tests.schemas import SMALL, WORD, listed, record
from tests.text.calls import grammars, ids_of, mask, read, say, use, valid, walk
from tests.text.tokenizers import CHATML, SPECIAL, decode_byte_level

TEXT: Final = {"type": "string"}
COLOUR: Final = {"type": "string", "enum": ["red", "</parameter>", "null", "größer"]}
WIDE: Final = record(
    ["city", "days", "where"],
    {"$defs": {"spot": record(x=SMALL)}},
    city=TEXT,
    unit=COLOUR,
    days=SMALL,
    warm={"type": "boolean"},
    tags=listed(WORD),
    where={"type": "object", "properties": {"spot": {"$ref": "#/$defs/spot"}}, "required": ["spot"]}
    | {"additionalProperties": False},
    kind={"const": "fixed"},
)
TWO: Final = {"get_weather": WIDE, "look": record()}
NULL: Final = {"type": "null"}
DEFS: Final = {"$defs": {"small": SMALL, "colour": COLOUR}}
UNIONS: Final = record(
    list("abcdefgh"),
    DEFS,
    a={"anyOf": [SMALL, NULL]},
    b={"$ref": "#/$defs/small"},
    c={"anyOf": [{"enum": ["red", "green"]}, NULL]},
    d={"enum": ["red", 5, None, True]},
    e={"type": ["integer", "boolean"], "minimum": 0, "maximum": 9},
    f={"anyOf": [TEXT, listed(SMALL), NULL]},
    g={"oneOf": [{"const": 1}, {"const": "two"}]},
    h={"anyOf": [TEXT, {"type": "integer", "minimum": 0}]},
)
CLOSE: Final = "\n</parameter>"


@pytest.fixture(
    scope="module",
    params=[(), pytest.param(("<tool_call>", "</tool_call>"), marks=pytest.mark.slow)],
    ids=["texts", "tokens"],
)
def coder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TokenizerWrapper:
    words = "{# <tool_call>\n<function= #}"
    return decode_byte_level(
        tmp_path_factory.mktemp("coder"), words + CHATML, (*SPECIAL, *request.param)
    )


def test_whatever_a_forced_answer_may_say_is_valid_calls(coder: TokenizerWrapper) -> None:
    counts, seen_calls = set(), list[tuple[str, Any]]()
    for seed in range(40):
        text, calls = read(
            coder, walk(mask(coder, use(TWO, forced=True)), coder, seed, CLOSE), use(TWO)
        )
        assert text == ""
        assert valid(calls, TWO)
        counts.add(len(calls))
        seen_calls += calls
    assert 0 not in counts
    assert len(counts) > 1
    assert {name for name, _ in seen_calls} == set(TWO)
    keys = set[str]().union(*(arguments.keys() for _, arguments in seen_calls))
    assert keys == set(WIDE["properties"])
    assert {arguments["unit"] for _, arguments in seen_calls if "unit" in arguments} == {
        "red",
        "null",
        "größer",
    }


def test_a_named_function_is_the_only_one_and_ends_the_answer(coder: TokenizerWrapper) -> None:
    one = use(TWO, forced=True, single=True, name="get_weather")
    of = mask(coder, one)
    assert (
        coder.decode(forced_tokens(of, 200))
        == "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
    )
    _, calls = read(coder, walk(of, coder, 1, CLOSE), one)
    assert of.ended
    assert [name for name, _ in calls] == ["get_weather"]


def test_strict_calls_in_prose_are_held_and_others_have_any_arguments(
    coder: TokenizerWrapper,
) -> None:
    other = {"anything": record(["a"], a=SMALL)}
    strict = use(TWO | other, strict=frozenset(TWO))
    for seed in range(10):
        of = mask(coder, strict)
        tokens = say(of, coder, "So. <tool_call>")
        tokens += walk(of, coder, seed, CLOSE)
        tokens += say(
            of,
            coder,
            " Then <tool_call>\n<function=anything>\n<parameter=b>\nx\n</parameter>\n</function>",
        )
        tokens += say(of, coder, "\n</tool_call>")
        text, calls = read(coder, tokens, strict)
        assert text.startswith("So.")
        assert valid(calls[:-1], TWO | {"anything": {}})
        assert calls[-1] == ("anything", {"b": "x"})


def test_values_of_several_types_follow_their_schema(coder: TokenizerWrapper) -> None:
    one = use({"it": UNIONS}, forced=True, single=True)
    seen: dict[str, set[str]] = {}
    for seed in range(25):
        text, calls = read(coder, walk(mask(coder, one), coder, seed, CLOSE), one)
        assert (text, len(calls)) == ("", 1)
        assert valid(calls, {"it": UNIONS})
        for name, value in calls[0][1].items():
            seen.setdefault(name, set()).add(type(value).__name__)
    assert seen["a"] == {"int", "NoneType"}
    assert seen["c"] == {"str", "NoneType"}
    assert seen["d"] == {"str", "int", "NoneType", "bool"}
    assert seen["g"] == {"int", "str"}


@pytest.mark.parametrize(("text", "value"), [("[5]", [5]), ("5", "5"), ("null", None)])
def test_a_list_may_stand_where_a_text_may(coder: TokenizerWrapper, text: str, value: Any) -> None:
    schema = {"anyOf": [TEXT, listed(SMALL), NULL]}
    one = use({"it": record(a=schema)}, forced=True, single=True)
    call = f"<tool_call>\n<function=it>\n<parameter=a>\n{text}{CLOSE}\n</function>\n</tool_call>"
    assert read(coder, say(mask(coder, one), coder, call), one) == ("", [("it", {"a": value})])


@pytest.mark.parametrize(
    ("words", "closing"),
    [
        ("<tool_call> </arg_key>\n<arg_value>", "</arg_value>"),
        ("<tool_call> <arg_key></arg_key><arg_value>", "</arg_value>"),
        ("<longcat_tool_call> <longcat_arg_key>", "</longcat_arg_value>"),
        ("<minimax:tool_call>", "</parameter>"),
        ('<function name="<param name="', "</param>"),
    ],
)
def test_other_families_with_tags_are_held_too(tmp_path: Path, words: str, closing: str) -> None:
    tokenizer = decode_byte_level(tmp_path, f"{{# {words} #}}{CHATML}")
    both = {"it": UNIONS, "look": record()}
    for seed in range(6):
        several = use(both, forced=True, single=seed % 2 == 0)
        tokens = walk(mask(tokenizer, several), tokenizer, seed, closing)
        text, calls = read(tokenizer, tokens, several)
        assert (text, bool(calls)) == ("", True), tokenizer.decode(tokens)
        assert valid(calls, both)


@pytest.mark.parametrize("value", ["null", "NuLL", "true", "5", '{"a": 1}', "</function>"])
def test_a_text_may_look_like_anything(coder: TokenizerWrapper, value: str) -> None:
    one = use({"it": record(a=TEXT)}, forced=True, single=True)
    of = mask(coder, one)
    call = f"<tool_call>\n<function=it>\n<parameter=a>\n{value}{CLOSE}\n</function>\n</tool_call>"
    assert read(coder, say(of, coder, call), one) == ("", [("it", {"a": value})])


def test_a_text_is_free_up_to_its_tag(coder: TokenizerWrapper) -> None:
    one = use({"write": record(text=TEXT)}, forced=True, single=True)
    value = '\n<parameter=text>\n"</function>\n" </parameter\n\n日本\n'
    of = mask(coder, one)
    tokens = say(
        of,
        coder,
        f"<tool_call>\n<function=write>\n<parameter=text>\n{value}{CLOSE}\n</function>\n</tool_call>",
    )
    assert of.ended
    assert read(coder, tokens, one) == ("", [("write", {"text": value})])


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (TEXT, "a</parameter>"),
        (COLOUR, "blue"),
        ({"anyOf": [SMALL, NULL]}, "five"),
        ({"type": ["integer", "null"]}, "x"),
        ({"$ref": "#/$defs/small"}, "x"),
        ({"$ref": "#/$defs/colour"}, "blue"),
        ({"enum": [5, 6]}, "7"),
        ({"const": 5}, "6"),
        ({"anyOf": [COLOUR, NULL]}, "blue"),
        ({"enum": ["red", 5]}, "6"),
        ({"anyOf": [{"type": "boolean"}, NULL]}, "yes"),
        ({"anyOf": [TEXT, listed(SMALL)]}, '["x"]'),
        ({"anyOf": [TEXT, {"type": "integer", "minimum": 0}]}, "-1"),
        (SMALL, "x"),
    ],
)
def test_what_would_not_be_read_as_it_must_cannot_be_said(
    coder: TokenizerWrapper, schema: Any, value: str
) -> None:
    of = mask(coder, use({"it": record(None, DEFS, a=schema)}, forced=True, single=True))
    say(of, coder, "<tool_call>\n<function=it>\n<parameter=a>\n")
    assert not all(of.advance(token) for token in ids_of(coder, value + CLOSE))


def test_what_may_be_a_text_or_something_else_is_free(coder: TokenizerWrapper) -> None:
    maybe = record(a={"type": ["string", "null"]}, b={"anyOf": [TEXT, SMALL]})
    one = use({"it": maybe}, forced=True, single=True)
    of = mask(coder, one)
    call = f"<parameter=a>\nnull{CLOSE}\n<parameter=b>\nx{CLOSE}\n"
    tokens = say(of, coder, f"<tool_call>\n<function=it>\n{call}</function>\n</tool_call>")
    assert read(coder, tokens, one) == ("", [("it", {"a": None, "b": "x"})])


def test_without_properties_there_may_be_any(coder: TokenizerWrapper) -> None:
    for schema, expected in (({"type": "object"}, True), (record(), False)):
        of = mask(coder, use({"it": schema}, forced=True, single=True))
        before = len(say(of, coder, "<tool_call>\n<function=it>\n"))
        assert (
            all(of.advance(token) for token in ids_of(coder, f"<parameter=x>\ny{CLOSE}\n"))
            == expected
        )
        of.rollback(len(of.tokens) - before)
        say(of, coder, "</function>\n</tool_call>")
        assert of.ended


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (record(**{"a b": TEXT}), "a b"),
        (record(a={"type": "strin"}), "strin"),
        ({"type": "object", "properties": 3}, "properties must be an object"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "never end"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(
    coder: TokenizerWrapper, schema: Any, said: str
) -> None:
    of: ToolUse = use({"bad": schema}, forced=True)
    with pytest.raises(BadRequest) as caught:
        grammars(coder).compile_tool_calls(of)
    assert (caught.value.code, caught.value.params["name"]) == ("tools.schema", "bad")
    assert said in caught.value.message
