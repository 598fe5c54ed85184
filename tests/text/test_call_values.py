"""Arguments between tags: typed by the function's schema, white space kept, forgotten tags."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason
from omlx.text.events import TextDelta, ToolCallArguments, ToolCallStart
from omlx.text.output import OutputParser, OutputSpec
from tests.text.test_output import STATS
from tests.text.tokenizers import CHATML, decode_byte_level

WORDS: Final = {
    "qwen3_coder": "<tool_call>\n<function=",
    "glm": "<tool_call> <arg_key>",
    "minimax_m2": "<minimax:tool_call>",
}
"""Words of a chat template by which each family is recognised."""

CALLS: Final = {
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=v>\n{}\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm": "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="v">{}</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
}

INTEGER: Final = {"type": "integer"}
TEXT: Final = {"type": "string"}
NULL: Final = {"type": "null"}
VALUES: Final[Sequence[tuple[str, Any, Any]]] = (
    ("5", {"anyOf": [INTEGER, NULL]}, 5),
    ("null", {"anyOf": [INTEGER, NULL]}, None),
    ("true", {"anyOf": [{"type": "boolean"}, NULL]}, True),
    ("5", {"$ref": "#/$defs/count"}, 5),
    ("5", {"enum": [5, 6]}, 5),
    ("5", {"const": 5}, 5),
    ("5", {"enum": ["5", "6"]}, "5"),
    ("123", {"type": ["string", "null"]}, "123"),
    ("null", {"type": ["string", "null"]}, None),
    ("123", {"anyOf": [TEXT, NULL]}, "123"),
    ("123", {"$ref": "#/$defs/word"}, "123"),
    ("null", TEXT, "null"),
    ("true", TEXT, "true"),
    ('{"a": 1}', TEXT, '{"a": 1}'),
    ('"quoted"', TEXT, '"quoted"'),
    ("9007199254740993", INTEGER, 9007199254740993),
    ("123456789012345678901234567890", INTEGER, 123456789012345678901234567890),
    ("5.0", INTEGER, 5),
    ("1.5", {"type": "number"}, 1.5),
    ("True", {"type": "boolean"}, True),
    ("['a', None]", {"type": "array"}, ["a", None]),
    ('{"a": "x\ny"}', {"type": "object"}, {"a": "x\ny"}),
    ("[1, 2]", {"oneOf": [{"type": "array"}, NULL]}, [1, 2]),
    ("[1, 2]", {"allOf": [{"type": "array"}]}, [1, 2]),
    ("five", INTEGER, "five"),
    ('[{"a": "b"]}', {"type": "array"}, [{"a": "b"}]),
    ('[{"a": "b"]', {"type": "array"}, [{"a": "b"}]),
    ('[{"a": "b"}', {"type": "array"}, [{"a": "b"}]),
    ('[{"a": [1}]', {"type": "array"}, [{"a": [1]}]),
    ('{"a": [1, 2}', {"type": "object"}, {"a": [1, 2]}),
    ('{"a": 1}}', {"type": "object"}, {"a": 1}),
    ('```json\n[{"a": 1}]\n```', {"type": "array"}, [{"a": 1}]),
    ('```\n{"a": 1,}\n```', {"type": "object"}, {"a": 1}),
    ('"[{\\"a\\": 1}]"', {"type": "array"}, [{"a": 1}]),
    ('"{\\"a\\": [1, 2}"', {"type": "object"}, {"a": [1, 2]}),
    ('[{"a": "b"]}', {"anyOf": [{"type": "array"}, NULL]}, [{"a": "b"}]),
    ('[{"a": "b"]}', {"type": ["string", "array"]}, '[{"a": "b"]}'),
    ('[{"a": "never closed', {"type": "array"}, '[{"a": "never closed'),
    ("[1, 2] and more", {"type": "array"}, "[1, 2] and more"),
    ("nothing", {"type": "array"}, "nothing"),
    ("    return 1\n", TEXT, "    return 1\n"),
    ("\n\nx\n\n", TEXT, "\n\nx\n\n"),
    (" \t", TEXT, " \t"),
    ("", TEXT, ""),
    (" x", {"anyOf": [TEXT, NULL]}, " x"),
    ("a </parameter> </arg_value> b", TEXT, "a </parameter> </arg_value> b"),
    ("</tool_call>", TEXT, "</tool_call>"),
    (
        "<function=f>\n</function>\n</tool_call>\n",
        TEXT,
        "<function=f>\n</function>\n</tool_call>\n",
    ),
)
"""What a model writes, the schema of its argument, the value."""


def tool(schema: Mapping[str, Any], *more: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"v": schema} | dict.fromkeys(more, TEXT),
        "$defs": {"count": INTEGER, "word": {"type": "string", "minLength": 1}},
    }
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenizerWrapper]:
    return {
        family: decode_byte_level(tmp_path_factory.mktemp(family), f"{{# {words} #}}{CHATML}")
        for family, words in WORDS.items()
    }


def parse(
    tokenizer: TokenizerWrapper, text: str, tools: Sequence[Mapping[str, Any]], seed: int = 0
) -> tuple[str, list[tuple[str, Any]]]:
    """Return text and calls; `seed` cuts the output at random, 0 does not."""
    parser = OutputParser(tokenizer, OutputSpec(tools=tuple(tools)))
    tokens = list(tokenizer.encode(text, add_special_tokens=False))
    cuts = [0, len(tokens)]
    if seed:
        choose = random.Random(seed)
        cuts = sorted({*cuts, *(choose.randrange(len(tokens)) for _ in range(6 * seed))})
    events = [event for start, end in pairwise(cuts) for event in parser.feed(tokens[start:end])]
    said, calls = "", list[list[str]]()
    for event in [*events, *parser.finish(FinishReason.STOP, STATS)]:
        match event:
            case TextDelta(text=piece):
                said += piece
            case ToolCallStart(name=name):
                calls.append([name, ""])
            case ToolCallArguments(text=piece):
                calls[-1][1] += piece
    return said, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize(("text", "schema", "value"), VALUES)
def test_a_value_has_the_type_of_its_schema(
    tokenizers: dict[str, TokenizerWrapper], family: str, text: str, schema: Any, value: Any
) -> None:
    call = CALLS[family].format(text.replace("{", "{{").replace("}", "}}").format())
    for seed in (0, 1, 9):
        said, calls = parse(tokenizers[family], call, [tool(schema)], seed)
        assert (said, calls) == ("", [("f", {"v": value})])
        assert type(calls[0][1]["v"]) is type(value)


ONE: Final = "<function=f>\n<parameter=v>\na\n</parameter>\n</function>"
OTHER: Final = ONE.replace("\na\n", "\nb\n")
SLIPS: Final[Mapping[str, tuple[str, str, list[Any]]]] = {
    "a closing tag": (
        "<tool_call>\n<function=f>\n<parameter=v>x</function>\n</tool_call>",
        "",
        [{"v": "x"}],
    ),
    "a closing tag before another argument": (
        "<tool_call>\n<function=f>\n<parameter=v>\nx\n<parameter=w>\ny\n</parameter>\n</function>\n"
        "</tool_call>",
        "",
        [{"v": "x", "w": "y"}],
    ),
    "a closing tag before another call": (
        f"<tool_call>\n<function=f>\n<parameter=v>x</function>\n</tool_call>\n<tool_call>\n{ONE}\n"
        "</tool_call>",
        "",
        [{"v": "x"}, {"v": "a"}],
    ),
    "two functions between one pair of markers": (
        f"<tool_call>\n{ONE}\n{OTHER}\n</tool_call>",
        "",
        [{"v": "a"}, {"v": "b"}],
    ),
    "the opening marker": (f"Let me look.\n{ONE}\n</tool_call>", "Let me look.", [{"v": "a"}]),
    "both markers": (f"Let me look.\n{ONE}\nSo.", "Let me look.\nSo.", [{"v": "a"}]),
    "the function's closing tag": (
        "<tool_call>\n<function=f>\n<parameter=v>\na\n</parameter>\n</tool_call>",
        "",
        [{"v": "a"}],
    ),
    "no argument": ("<tool_call>\n<function=f>\n</function>\n</tool_call>", "", [{}]),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_of_qwen_coder_are_calls(tokenizers: dict[str, TokenizerWrapper], slip: str) -> None:
    text, said, arguments = SLIPS[slip]
    for seed in (0, 1, 5, 20):
        calls = [("f", each) for each in arguments]
        assert parse(tokenizers["qwen3_coder"], text, [tool(TEXT, "w")], seed) == (said, calls)


def test_a_bare_tag_of_no_known_function_is_prose(tokenizers: dict[str, TokenizerWrapper]) -> None:
    for text in ("Write <function=g>\n</function> here", "<function=f> is how", "<function="):
        for seed in (0, 3):
            assert parse(tokenizers["qwen3_coder"], text, [tool(TEXT)], seed) == (text, [])


def test_one_line_break_joins_texts_around_calls(tokenizers: dict[str, TokenizerWrapper]) -> None:
    call = CALLS["qwen3_coder"].format("x")
    for gap in ("\n", "", " ", "\n\n"):
        for seed in (0, 1, 20):
            text = f"A{gap}{call}{gap}{call}{gap}B{gap}{call}\n"
            said, calls = parse(tokenizers["qwen3_coder"], text, [tool(TEXT)], seed)
            assert (said, len(calls)) == ("A\nB", 3)
