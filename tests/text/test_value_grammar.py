"""Calls of families whose arguments are neither one JSON object nor plain tags, held to their
functions: whatever may be said reads as calls whose arguments have their schema.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text.calls.markup import call_format, write_calls
from tests.schemas import SMALL, WORD, listed, record
from tests.text.calls import family as family_tokenizer
from tests.text.calls import grammars, mask, read, say, use, valid, walk
from tests.text.test_tag_grammar import UNIONS
from tests.text.tokenizers import CHATML, decode_byte_level

TEXT: Final = {"type": "string"}
TREE: Final = record(["size"], size=SMALL, more=listed({"$ref": "#/$defs/tree"}, most=2))
WIDE: Final = record(
    ["city", "size", "where"],
    {"$defs": {"tree": TREE, "spot": record(x=SMALL, name={"enum": ["a", "b, c"]})}},
    city=TEXT,
    unit={"enum": ["red", "größer", 5]},
    size={"type": "integer", "minimum": 10**18, "maximum": 10**18 + 128},
    warm={"type": ["boolean", "null"]},
    tags=listed({"enum": ['a "b"', "x, y", "]"]}),
    where={"$ref": "#/$defs/spot"},
    tree={"$ref": "#/$defs/tree"},
    either={"anyOf": [SMALL, record(a=WORD), {"type": "null"}]},
    both={"allOf": [{"$ref": "#/$defs/spot"}], "description": "x"},
    empty=record(),
    one=listed(SMALL, most=1),
)
BOTH: Final = {"wide": WIDE, "unions": UNIONS, "look": record()}
WORDS: Final = {
    "gemma 4": ("<|tool_call> <tool_call|>", ("<|tool_call>", "<tool_call|>", '<|"|>'), '<|"|>'),
    "gemma 4, markers as text": ("<|tool_call> <tool_call|>", (), '<|"|>'),
    "functiongemma": (
        "<start_function_call>",
        ("<start_function_call>", "<end_function_call>", "<escape>"),
        "<escape>",
    ),
    "lfm2": ("<|tool_call_start|>", ("<|tool_call_start|>", "<|tool_call_end|>"), '"'),
    "kimi k3": (
        "<|open|>tools<|sep|> argument key=",
        ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        "<|close|>argument<|sep|>",
    ),
    "minimax m3": ("]<]minimax[>[ <tool_call>", ("]<]minimax[>[",), "]<]minimax[>["),
    "minimax m3, markers as text": ("]<]minimax[>[ <tool_call>", (), "]<]minimax[>["),
    "muse": ("<atem:function_calls>", (), "</atem:parameter>"),
}
"""By family: words of its template, tokens of its tokenizers, and what ends a text."""


@pytest.fixture(scope="module", params=WORDS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    words, tokens, _ = WORDS[family]
    return family_tokenizer(tmp_path_factory.mktemp("family"), words, tokens)


def test_a_forced_answer_is_calls(family: str, model: TokenizerWrapper) -> None:
    several = use(BOTH, forced=True)
    seen = set[str]()
    for seed in range(4):
        of = mask(model, several)
        text, calls = read(model, walk(of, model, seed, WORDS[family][2]), several)
        assert text == ""
        assert calls
        assert valid(calls, BOTH)
        seen |= {name for name, _ in calls}
    assert len(seen) > 1


@pytest.mark.parametrize("name", BOTH)
def test_a_named_function_ends_the_answer(family: str, model: TokenizerWrapper, name: str) -> None:
    one = use(BOTH, forced=True, single=True, name=name)
    for seed in range(2):
        of = mask(model, one)
        text, calls = read(model, walk(of, model, seed, WORDS[family][2]), one)
        assert of.ended
        assert (text, [each for each, _ in calls]) == ("", [name])
        assert valid(calls, BOTH)


def test_strict_calls_in_prose_are_held(family: str, model: TokenizerWrapper) -> None:
    strict = use(BOTH, strict=frozenset(BOTH))
    form = call_format(model)
    assert form is not None
    for seed in range(2):
        of = mask(model, strict)
        tokens = say(of, model, f"So. {form.start}")
        tokens += walk(of, model, seed, WORDS[family][2])
        text, calls = read(model, tokens, strict)
        assert (text, bool(calls)) == ("So.", True)
        assert valid(calls, BOTH)


ARGUMENTS: Final[dict[str, Any]] = {
    "text": 'a "b", c="d", n=5) \\ \n }],{ <x> 日本',
    "escaped": 'print("a", end="")]',
    "number": 12345678901234567890123,
    "none": None,
    "flags": [True, False, None],
    "nested": {"a": [{"b": "x, y"}], "c": {}},
    "like": "5",
}


def test_given_calls_are_written_as_they_are_read_and_may_be_said(
    family: str, model: TokenizerWrapper
) -> None:
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


def test_lfm2_writes_calls_as_python(tmp_path: Any) -> None:
    model = decode_byte_level(tmp_path, f"{{# <|tool_call_start|> #}}{CHATML}")
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
