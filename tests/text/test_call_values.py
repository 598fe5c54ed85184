"""Arguments typed by the function's schema, and forms of calls beside that of a template: forgotten
tags and keys, dashed names, arguments without a name, broken JSON; every writing in every format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason
from omlx.text.calls import markup
from omlx.text.calls.json_formats import HARMONY
from tests.lanes import few
from tests.templates.parsing import parse
from tests.text.call_matrix import (
    FORMATS,
    LOOK,
    WEATHER,
    Read,
    cases,
    other_writings,
    pieces_of,
    read,
    table,
    written,
)
from tests.text.call_writings import WRITINGS
from tests.text.calls import FAMILIES, NULL, TEXT

GEMMA: Final = "gemma 4, markers as text"
NAMES: Final = (
    *("qwen coder", "glm", "minimax m2", GEMMA, "lfm2", "json tools"),
    *("kimi k2", "mistral, a list"),
)
CALLS: Final = {
    "qwen coder": "<tool_call>\n<function=f>\n<parameter=v>\n{}\n</parameter>\n</function>\n"
    "</tool_call>",
    "glm": "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
    "minimax m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="v">{}</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
}

INTEGER: Final = {"type": "integer"}
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
    return {name: FAMILIES[name].load(tmp_path_factory.mktemp(name)) for name in NAMES}


def parsed(
    tokenizer: TokenizerWrapper, text: str, tools: Sequence[Mapping[str, Any]], seed: int
) -> tuple[str, list[tuple[str, Any]]]:
    output = parse(tokenizer, text, tools, seed)
    return output.text, output.named


@pytest.mark.parametrize("family", CALLS)
@pytest.mark.parametrize(("text", "schema", "value"), few(VALUES, every=2))
def test_a_value_has_the_type_of_its_schema(
    tokenizers: dict[str, TokenizerWrapper], family: str, text: str, schema: Any, value: Any
) -> None:
    call = CALLS[family].format(text.replace("{", "{{").replace("}", "}}").format())
    for seed in (0, 1, 9):
        said, calls = parsed(tokenizers[family], call, [tool(schema)], seed)
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
        assert parsed(tokenizers["qwen coder"], text, [tool(TEXT, "w")], seed) == (said, calls)


def test_a_bare_tag_of_no_known_function_is_prose(tokenizers: dict[str, TokenizerWrapper]) -> None:
    for text in ("Write <function=g>\n</function> here", "<function=f> is how", "<function="):
        for seed in (0, 3):
            assert parsed(tokenizers["qwen coder"], text, [tool(TEXT)], seed) == (text, [])


def test_one_line_break_joins_texts_around_calls(tokenizers: dict[str, TokenizerWrapper]) -> None:
    call = CALLS["qwen coder"].format("x")
    for gap in ("\n", "", " ", "\n\n"):
        for seed in (0, 1, 20):
            text = f"A{gap}{call}{gap}{call}{gap}B{gap}{call}\n"
            said, calls = parsed(tokenizers["qwen coder"], text, [tool(TEXT)], seed)
            assert (said, len(calls)) == ("A\nB", 3)


def function(name: str, **properties: Any) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS: Final = (
    function("f", v=TEXT, n={"type": "integer"}),
    function("get-docs", v=TEXT),
    function("none"),
)
F: Final = "f"


@pytest.mark.parametrize(
    ("family", "text", "calls"),
    [
        (GEMMA, "call:f{max-results:5}", [(F, {"max-results": 5})]),
        (
            GEMMA,
            'call:get-docs{headers:{Content-Type:<|"|>a<|"|>,X-Id:1},all:[{a-b:null}]}',
            [("get-docs", {"headers": {"Content-Type": "a", "X-Id": 1}, "all": [{"a-b": None}]})],
        ),
        (
            GEMMA,
            'call:f{v:<|"|>{a:1}, <tool_call|> "x"\n<|"|>}',
            [(F, {"v": '{a:1}, <tool_call|> "x"\n'})],
        ),
        (GEMMA, 'call:f{<|"|>v<|"|>:<|"|>x<|"|>,n:-7}', [(F, {"v": "x", "n": -7})]),
        (GEMMA, "call:f{n:None,all:[None,True]}", [(F, {"n": None, "all": [None, True]})]),
        (GEMMA, "call:f{v:12}", [(F, {"v": "12"})]),
        (GEMMA, "call:f{n:9007199254740993}", [(F, {"n": 9007199254740993})]),
        (GEMMA, "call:f{}call:none{}", [(F, {}), ("none", {})]),
        ("lfm2", '[get-docs(v="a")]', [("get-docs", {"v": "a"})]),
        ("lfm2", '[f("a", 5)]', [(F, {"v": "a", "n": 5})]),
        ("lfm2", '[f("a", n=5), none()]', [(F, {"v": "a", "n": 5}), ("none", {})]),
        ("lfm2", "[f(v='it's, \"so\"')]", [(F, {"v": 'it\'s, "so"'})]),
        ("lfm2", "[f(v='a\nb\\n')]", [(F, {"v": "a\nb\n"})]),
        ("lfm2", '[f(v="<|tool_call_end|> [f()]")]', [(F, {"v": "<|tool_call_end|> [f()]"})]),
        ("lfm2", '[f(o={"a-b": [1, None]}, n=5)]', [(F, {"o": {"a-b": [1, None]}, "n": 5})]),
        ("json tools", '{"name": "none"}', [("none", {})]),
        ("json tools", '{"name": "f", "parameters": {"v": "a"}}', [(F, {"v": "a"})]),
        ("json tools", '{"arguments": {"v": "a"}, "name": "f"}', [(F, {"v": "a"})]),
        (
            "json tools",
            '[{"name": "f", "arguments": {}}, {"name": "none", "arguments": {}}]',
            [(F, {}), ("none", {})],
        ),
        ("json tools", '{"name": "f", "arguments": {"v": "a\nb\t"}}', [(F, {"v": "a\nb\t"})]),
        ("json tools", '{"name": "f", "arguments": {"v": "a", }}', [(F, {"v": "a"})]),
        ("json tools", '{"name": "f", "arguments": {"v": "a"', [(F, {"v": "a"})]),
        ("json tools", "{'name': 'f', 'arguments': {'v': None}}", [(F, {"v": None})]),
    ],
)
def test_forms(
    tokenizers: dict[str, TokenizerWrapper], family: str, text: str, calls: list[Any]
) -> None:
    tokenizer = tokenizers[family]
    whole = f"{tokenizer.tool_call_start}{text}{tokenizer.tool_call_end}"
    for seed in (0, 1, 12):
        assert parsed(tokenizer, whole, TOOLS, seed) == ("", calls)
        assert parsed(tokenizer, f"A\n{whole}\n{whole} B", TOOLS, seed) == ("A\nB", calls + calls)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("lfm2", '<|tool_call_start|>[g("a")]<|tool_call_end|>'),
        ("lfm2", '<|tool_call_start|>[f("a", 5, 6)]<|tool_call_end|>'),
        ("json tools", '<tool_call>{"name": "g"}</tool_call>'),
        ("kimi k2", "<|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{}"),
    ],
)
def test_what_cannot_be_a_call_is_text(
    tokenizers: dict[str, TokenizerWrapper], family: str, text: str
) -> None:
    for seed in (0, 5):
        assert parsed(tokenizers[family], text, TOOLS, seed) == (text, [])


def test_kimi_may_forget_its_section(tokenizers: dict[str, TokenizerWrapper]) -> None:
    one = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"v": "a"}<|tool_call_end|>'
    for seed in (0, 1, 12):
        said, calls = parsed(tokenizers["kimi k2"], f"A{one}{one}", TOOLS, seed)
        assert (said, calls) == ("A", [(F, {"v": "a"})] * 2)


def test_a_list_that_was_cut_off_keeps_its_calls(tokenizers: dict[str, TokenizerWrapper]) -> None:
    tokenizer = tokenizers["mistral, a list"]
    text = (
        '[TOOL_CALLS][{"name": "f", "arguments": {"v": "a"}}, {"name": "f", "arguments": {"v": "b'
    )
    output = parse(tokenizer, text, TOOLS, reason=FinishReason.LENGTH)
    assert [(name, arguments) for _, name, arguments in output.calls] == [
        (F, '{"v": "a"}'),
        (F, '{"v": "b'),
    ]
    assert output.complete == [True, False]


def outcomes(family: str, text: str) -> list[Read]:
    return [read(FORMATS[family], pieces) for pieces in pieces_of(text)]


def test_every_format_is_in_the_matrix() -> None:
    known = [*markup.FAMILIES, HARMONY]
    assert all(form in FORMATS.values() for form in known)
    assert WRITINGS.keys() <= FORMATS.keys()
    assert len(list(table())) == len(FORMATS) + 2


@pytest.mark.parametrize("family", FORMATS)
def test_every_case(family: str) -> None:
    for name, (text, expected) in cases(FORMATS[family]).items():
        assert outcomes(family, text) == [expected] * 3, name


@pytest.mark.parametrize("family", WRITINGS)
def test_other_writings(family: str) -> None:
    for text in other_writings(family):
        assert outcomes(family, text) == [("", [WEATHER])] * 3, text


@pytest.mark.parametrize("family", few(sorted(FORMATS.keys() - {"harmony"}), every=3))
def test_a_broken_header_loses_nothing(family: str) -> None:
    text = written(FORMATS[family], WEATHER)
    for at in range(0, text.index("Zürich"), 2):
        whole, *others = outcomes(family, text[:at] + text[at + 1 :])
        assert others == [whole] * 2
        assert "Zürich" in str(whole)


@pytest.mark.parametrize("family", [key for key, form in FORMATS.items() if form.end])
def test_markers_that_are_written_twice(family: str) -> None:
    form = FORMATS[family]
    start = form.start if form.marked and family != "harmony" else ""
    text = f"{start}\n{written(form, WEATHER)}\n{form.end} A"
    assert outcomes(family, text) == [("A", [WEATHER])] * 3


def test_a_marker_that_is_written_twice_may_be_prose() -> None:
    for text in ("<tool_call> <tool_call> so", "<tool_call><tool_call>", "<tool_call> <tool"):
        assert outcomes("json_tools", text) == [(text, [])] * 3


@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_arguments_that_are_null_are_none(key: str) -> None:
    text = f'<tool_call>\n{{"name": "look", "{key}": null}}\n</tool_call>'
    assert outcomes("json_tools", text) == [("", [LOOK])] * 3


@pytest.mark.parametrize("family", sorted(FORMATS.keys() - {"harmony"}))
def test_a_text_behind_a_call_is_no_call(family: str) -> None:
    text = written(FORMATS[family], WEATHER)
    for said in ('So {"a": 1}', 'Then\n{"a": 1}', "f(a=1)", "look: {}"):
        assert outcomes(family, f"{text}\n{said}") == [(said, [WEATHER])] * 3
