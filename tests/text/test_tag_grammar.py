"""Calls whose arguments stand between tags, over a real tokenizer: what may be said, as what it is
read, what is refused.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import forced_tokens
from omlx.errors import BadRequest
from omlx.text.tools import ToolUse
from tests.lanes import few
from tests.schemas import SMALL, listed, record
from tests.text.calls import (
    FAMILIES,
    NULL,
    SCHEMAS,
    TEXT,
    UNIONS,
    grammars,
    ids_of,
    mask,
    read,
    say,
    use,
    valid,
    walk,
)

COLOUR: Final = {"type": "string", "enum": ["red", "</parameter>", "null", "größer"]}
DEFS: Final = {"$defs": {"small": SMALL, "colour": COLOUR}}
CLOSE: Final = "\n</parameter>"


@pytest.fixture(
    scope="module",
    params=few(["qwen coder", "qwen coder, markers of one token"], "qwen coder"),
)
def coder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TokenizerWrapper:
    return FAMILIES[request.param].load(tmp_path_factory.mktemp("coder"))


def test_markup_must_come(coder: TokenizerWrapper) -> None:
    of = mask(coder, use(SCHEMAS, forced=True, single=True, name="wide"))
    opening = "<tool_call>\n<function=wide>\n<parameter=city>\n"
    assert coder.decode(forced_tokens(of, 200)) == opening


def test_strict_calls_in_prose_are_held_and_others_have_any_arguments(
    coder: TokenizerWrapper,
) -> None:
    other = {"anything": record(["a"], a=SMALL)}
    strict = use(SCHEMAS | other, strict=frozenset(SCHEMAS))
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
        assert valid(calls[:-1], SCHEMAS | {"anything": {}})
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


LIST: Final = {"anyOf": [TEXT, listed(SMALL), NULL]}
FREE: Final = '\n<parameter=text>\n"</function>\n" </parameter\n\n日本\n'


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (LIST, "[5]", [5]),
        (LIST, "5", "5"),
        (LIST, "null", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [TEXT, SMALL]}, "x", "x"),
        *((COLOUR, text, text) for text in ("red", "null", "größer")),
        *((TEXT, text, text) for text in ("null", "NuLL", "true", "5", '{"a": 1}', "</function>")),
        (TEXT, FREE, FREE),
    ],
)
def test_what_may_be_said_is_read_as_its_schema_has_it(
    coder: TokenizerWrapper, schema: Any, text: str, value: Any
) -> None:
    one = use({"it": record(a=schema)}, forced=True, single=True)
    of = mask(coder, one)
    call = f"<tool_call>\n<function=it>\n<parameter=a>\n{text}{CLOSE}\n</function>\n</tool_call>"
    assert read(coder, say(of, coder, call), one) == ("", [("it", {"a": value})])
    assert of.ended


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (TEXT, "a</parameter>"),
        (COLOUR, "blue"),
        (COLOUR, "</parameter>"),
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
