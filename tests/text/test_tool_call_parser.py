"""Tool calls in every format that mlx-lm knows: whole, one character at a time, cut anywhere,
beside prose, cut off.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterable
from typing import Any

import pytest
from mlx_lm import tool_parsers

from omlx.text.calls import markup as formats
from omlx.text.calls.json_formats import HARMONY, MISTRAL_LISTING
from omlx.text.calls.markup import CallMarkup
from omlx.text.calls.parser import Piece, ToolCallParser
from omlx.text.events import TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from tests.lanes import few
from tests.text.calls import ARGUMENTS, EXAMPLES

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "note": {"type": "string"},
                    "high": {"type": "number"},
                },
            },
        },
    }
    for name in ("get_weather", "look")
]
PARSERS = sorted(module.name for module in pkgutil.iter_modules(tool_parsers.__path__))

ONE = {
    "function_gemma": "<start_function_call>call:get_weather{city:<escape>Zürich<escape>,days:3}"
    "<end_function_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Zürich<|"|>,days:3}<tool_call|>',
    "glm47": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "json_tools": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}'
    "\n</tool_call>",
    "kimi_k2": "<|tool_calls_section_begin|>"
    "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Zürich", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Zürich<|close|>argument<|sep|>'
    '<|open|>argument key="days" type="integer"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|>",
    "longcat": "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
    "<longcat_arg_value>Zürich</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
    "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
    "minicpm5": '<function name="get_weather"><param name="city">Zürich</param>'
    '<param name="days">3</param></function>',
    "minimax_m2": '<minimax:tool_call>\n<invoke name="get_weather">\n'
    '<parameter name="city">Zürich</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "mistral": '[TOOL_CALLS]get_weather[ARGS]{"city": "Zürich", "days": 3}',
    "muse_spark": '<atem:function_calls>\n<atem:invoke name="get_weather">\n'
    '<atem:parameter name="city">Zürich</atem:parameter>\n'
    '<atem:parameter name="days">3</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>",
    "pythonic": '<|tool_call_start|>[get_weather(city="Zürich", days=3)]<|tool_call_end|>',
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
}
ONE["laguna"] = ONE["glm47"]
TWO = {
    "json_tools": '<tool_call>{"name": "look", "arguments": {}}\n'
    '{"name": "look", "arguments": {"days": 3}}</tool_call>',
    "kimi_k2": "<|tool_calls_section_begin|>"
    "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_call_begin|>functions.look:1<|tool_call_argument_begin|>"
    '{"days": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "mistral": '[TOOL_CALLS]look[ARGS]{}[TOOL_CALLS]look[ARGS]{"days": 3}',
    "kimi_k3": '<|open|>tools<|sep|><|open|>call tool="look" index="1"<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="look" index="2"<|sep|>'
    '<|open|>argument key="days" type="integer"<|sep|>3'
    "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="look">\n</invoke>\n'
    '<invoke name="look">\n'
    '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "muse_spark": '<atem:function_calls>\n<atem:invoke name="look">\n</atem:invoke>\n'
    '<atem:invoke name="look">\n'
    '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
    "pythonic": "<|tool_call_start|>[look(), look(days=3)]<|tool_call_end|>",
}
ONE |= {name: example.one for name, example in EXAMPLES.items()}
TWO |= {name: example.two for name, example in EXAMPLES.items() if example.two}


TAGGED = ["glm47", "kimi_k3", "laguna", "longcat", "minimax_m2", "muse_spark", "qwen3_coder"]


def form(parser: str) -> CallMarkup:
    if parser in EXAMPLES:
        return CallMarkup(EXAMPLES[parser].form, TOOLS)
    module: Any = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    name = module.parse_tool_call.__module__.rpartition(".")[2]
    form = formats.PARSERS[name]
    assert (form.start, form.end) == (module.tool_call_start, module.tool_call_end)
    return CallMarkup(form, TOOLS, module.parse_tool_call)


def marked(parser: str) -> str:
    """Return a call as it stands behind a text."""
    own = form(parser).form
    return ONE[parser] if own.marked else own.start + ONE[parser]


def events(parser: str, pieces: Iterable[str]) -> list[object]:
    """Texts joined; a call as (name, arguments as text), with None behind it if it never ended."""
    machine = ToolCallParser(form(parser))
    parsed: list[Piece] = []
    for text in pieces:
        parsed += machine.feed(text)
    return normal(parsed + machine.finish())


def normal(said: list[Piece]) -> list[object]:
    out: list[object] = []
    for piece in said:
        match piece:
            case TextDelta(text=text):
                out[-1:] = (
                    [out[-1] + text] if out and isinstance(out[-1], str) else [*out[-1:], text]
                )
            case ToolCallStart(name=name, id=id):
                assert id
                out.append((name, "", None))
            case ToolCallArguments(text=text):
                name, before, _ = out[-1]
                out[-1] = (name, before + text, None)
            case ToolCallEnd():
                name, before, _ = out[-1]
                out[-1] = (name, before)
    return out


def read(parser: str, pieces: Iterable[str]) -> list[object]:
    """The same, with arguments as objects."""
    return [
        each if isinstance(each, str) else (each[0], json.loads(each[1]))
        for each in events(parser, pieces)
    ]


def test_the_corpus_has_every_format_of_mlx_lm() -> None:
    assert sorted(ONE.keys() - EXAMPLES.keys()) == PARSERS
    assert {*formats.PARSERS, "laguna"} == set(PARSERS)


@pytest.mark.parametrize("parser", ONE)
def test_a_call_one_character_at_a_time(parser: str) -> None:
    assert read(parser, ONE[parser]) == [("get_weather", ARGUMENTS)]
    assert read(parser, [ONE[parser]]) == [("get_weather", ARGUMENTS)]


@pytest.mark.parametrize("parser", ONE)
def test_text_around_a_call_and_no_white_space(parser: str) -> None:
    said = f"Let me see.\n\n{marked(parser)}\n"
    assert read(parser, said) == ["Let me see.", ("get_weather", ARGUMENTS)]
    if form(parser).form.end or form(parser).form.head:
        assert read(parser, f"{said} Done. ") == [
            "Let me see.",
            ("get_weather", ARGUMENTS),
            "\nDone. ",
        ]


@pytest.mark.parametrize("parser", ONE)
def test_calls_one_after_the_other(parser: str) -> None:
    assert read(parser, f"{ONE[parser]}\n{ONE[parser]}") == [("get_weather", ARGUMENTS)] * 2


@pytest.mark.parametrize("parser", TWO)
def test_two_calls_inside_one_pair_of_markers(parser: str) -> None:
    assert read(parser, TWO[parser]) == [("look", {}), ("look", {"days": 3})]


PROSE = (
    "Write {0} to begin and {1} to end.",
    "`{0}` opens a call",
    "{0}",
    "{0} ",
    "a {0} b {0} c {1} d",
    "{0}{0}{1}",
    "{1}",
    "{0}\n{{not a call}}{1} and more",
    'The tag {0}, he said, {{"is": ["odd"]}}.',
)


@pytest.mark.parametrize("parser", ONE)
def test_a_marker_in_prose_is_prose(parser: str) -> None:
    markup = form(parser)
    for prose in PROSE:
        text = prose.format(markup.form.start, markup.form.end)
        expected = [text] if text else []
        assert events(parser, text) == expected, prose
        assert events(parser, [text]) == expected, prose


@pytest.mark.parametrize("parser", ONE)
def test_prose_with_a_marker_and_then_a_call(parser: str) -> None:
    text = f"The marker {form(parser).form.start} means: {marked(parser)}"
    assert read(parser, text) == [
        f"The marker {form(parser).form.start} means:",
        ("get_weather", ARGUMENTS),
    ]


@pytest.mark.parametrize("parser", ONE)
def test_prose_with_a_marker_is_said_before_the_end(parser: str) -> None:
    machine = ToolCallParser(form(parser))
    said = machine.feed(f"Write {machine._markup.form.start} to begin; ")
    assert normal(said) == [f"Write {form(parser).form.start} to begin;"]


@pytest.mark.parametrize("parser", few(ONE, every=3))
def test_a_call_without_its_closing_marker_counts_and_one_cut_off_is_not_lost(parser: str) -> None:
    markup = form(parser)
    whole = ONE[parser].removesuffix(markup.form.end)
    assert read(parser, whole) == [("get_weather", ARGUMENTS)]
    for cut in range(len(whole)):
        said = events(parser, whole[:cut])
        kept = "".join(each if isinstance(each, str) else each[0] + each[1] for each in said)
        if all(isinstance(each, str) for each in said):
            assert kept == whole[:cut]
        else:
            assert "get_weather" in kept
            assert all(each in kept for each in ("Zü", "3") if each in whole[:cut])


@pytest.mark.parametrize("parser", few(TWO, every=3))
def test_no_call_of_several_is_lost_where_the_output_is_cut_off(parser: str) -> None:
    for cut in range(len(TWO[parser])):
        said = events(parser, TWO[parser][:cut])
        kept = "".join(each if isinstance(each, str) else each[0] + each[1] for each in said)
        assert all(each in kept for each in ("look", "3") if each in TWO[parser][:cut])


@pytest.mark.parametrize("parser", TAGGED)
def test_a_closing_marker_inside_of_a_value_belongs_to_it(parser: str) -> None:
    text = ONE[parser].replace("Zürich", f"Write {form(parser).form.end} to end.\nZürich")
    for pieces in ([text], list(text)):
        ((name, arguments), behind) = read(parser, [*pieces, " Done."])
        assert (name, behind) == ("get_weather", "Done.")
        assert form(parser).form.end in arguments["city"]


@pytest.mark.parametrize("parser", ["glm47", "longcat"])
def test_a_tag_that_was_never_closed_takes_no_call_with_it(parser: str) -> None:
    value = "</longcat_arg_value>" if parser == "longcat" else "</arg_value>"
    before, _, behind = ONE[parser].rpartition(value)
    forgetful = before + behind
    assert read(parser, forgetful) == [("get_weather", ARGUMENTS)]
    assert read(parser, f"{forgetful}\n{ONE[parser]}") == [("get_weather", ARGUMENTS)] * 2


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("qwen3_coder", ONE["qwen3_coder"].replace("\n3\n", "\n1e999\n")),
        ("minimax_m2", ONE["minimax_m2"].replace(">3<", ">1e999<")),
    ],
)
def test_a_number_out_of_range_stays_text(parser: str, text: str) -> None:
    assert read(parser, [text]) == [("get_weather", ARGUMENTS | {"days": "1e999"})]


@pytest.mark.parametrize("behind", ["[CALL_ID]abcdef123[ARGS]", "[CALL_ID] abcdef123 [ARGS] "])
def test_a_call_of_mistrals_may_say_its_id(behind: str) -> None:
    text = f'Let me.[TOOL_CALLS]look{behind}{{}}[TOOL_CALLS]get_weather{behind}{{"days": 3}}'
    assert (
        read("mistral", text)
        == read("mistral", [text])
        == ["Let me.", ("look", {}), ("get_weather", {"days": 3})]
    )
    starts = [
        piece
        for piece in ToolCallParser(form("mistral")).feed(text)
        if isinstance(piece, ToolCallStart)
    ]
    assert [piece.id for piece in starts] == ["abcdef123"] * 2


@pytest.mark.parametrize("parser", ["json_tools", "kimi_k2", "mistral"])
def test_arguments_of_json_formats_come_as_they_are_written(parser: str) -> None:
    machine = ToolCallParser(form(parser))
    text = ONE[parser]
    middle = text.index("Zürich") + 3
    said = machine.feed(text[:middle])
    assert [type(piece) for piece in said] == [ToolCallStart, ToolCallArguments]
    assert isinstance(said[1], ToolCallArguments)
    assert said[1].text == '{"city": "Zür'


@pytest.mark.parametrize("parser", ["json_tools", "mistral", "kimi_k2"])
def test_markers_inside_of_strings_belong_to_the_arguments(parser: str) -> None:
    markup = form(parser)
    note = f'{markup.form.start} }} {markup.form.end} \\" {{'
    text = ONE[parser].replace("Zürich", note)
    ((name, arguments),) = read(parser, text)
    assert (name, arguments["city"]) == ("get_weather", note.replace('\\"', '"'))


def test_a_marker_inside_of_a_string_where_the_name_comes_last() -> None:
    text = '<tool_call>{"arguments": {"note": "</tool_call>"}, "name": "look"}</tool_call>'
    assert read("json_tools", text) == [("look", {"note": "</tool_call>"})]


@pytest.mark.parametrize("arguments", ['{"days": 3', '{"days": 3, "note": "a"', "{"])
def test_an_output_that_ends_without_brackets_gets_them(arguments: str) -> None:
    text = f'<tool_call>{{"name": "look", "arguments": {arguments}'
    for complete in (True, False):
        parser = ToolCallParser(form("json_tools"))
        said = [*parser.feed(text), *parser.finish(complete=complete)]
        whole = "".join(piece.text for piece in said if isinstance(piece, ToolCallArguments))
        assert whole == (arguments + "}" if complete else arguments)
        assert [p.complete for p in said if isinstance(p, ToolCallEnd)] == [complete]


@pytest.mark.parametrize("arguments", ['{"note": "a', '{"days":', '{"days": 3, "note"'])
def test_an_output_that_ends_within_a_value_gives_it_as_it_is(arguments: str) -> None:
    parser = ToolCallParser(form("json_tools"))
    said = parser.feed(f'<tool_call>{{"name": "look", "arguments": {arguments}')
    said += parser.finish(complete=True)
    whole = "".join(piece.text for piece in said if isinstance(piece, ToolCallArguments))
    assert whole == arguments
    assert [p.complete for p in said if isinstance(p, ToolCallEnd)] == [False]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name": "look", "args_": {"days": 3}}', {"days": 3}),
        ('{"name": "look", "days": 3, "city": "a"}', {"days": 3, "city": "a"}),
        ('{"name": "look" "arguments": {"days": 3}}', {"days": 3}),
    ],
)
def test_arguments_are_found_where_their_key_is_broken(call: str, arguments: object) -> None:
    for pieces in ([f"<tool_call>{call}</tool_call>"], f"<tool_call>{call}</tool_call>"):
        assert read("json_tools", pieces) == [("look", arguments)]


def test_what_does_not_parse_is_prose() -> None:
    for text in (
        '<tool_call>{"name": "lurk"}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": [1]}</tool_call>',
        "<tool_call>[]</tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ):
        assert events("json_tools", [text]) == [text]


def test_superfluous_brackets_are_dropped() -> None:
    text = '<tool_call>{"name": "look", "arguments": {}}}\n]</tool_call>ok'
    assert read("json_tools", text) == [("look", {}), "ok"]


def test_a_function_that_is_not_among_the_tools_is_still_a_call() -> None:
    assert read("json_tools", ONE["json_tools"].replace("get_weather", "get_whether")) == [
        ("get_whether", ARGUMENTS)
    ]


def test_arguments_that_are_a_string_of_json() -> None:
    text = '<tool_call>{"name": "look", "arguments": "{\\"days\\": 3}"}</tool_call>'
    assert read("json_tools", text) == [("look", {"days": 3})]


def test_ids() -> None:
    kimi = ToolCallParser(form("kimi_k2")).feed(TWO["kimi_k2"])
    assert [piece.id for piece in kimi if isinstance(piece, ToolCallStart)] == [
        "functions.look:0",
        "functions.look:1",
    ]
    mistral = ToolCallParser(form("mistral")).feed(TWO["mistral"])
    ids = [piece.id for piece in mistral if isinstance(piece, ToolCallStart)]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert len(set(ids)) == 2


def test_a_call_that_is_demanded_is_held_to_a_grammar() -> None:
    known = [*formats.PARSERS.values(), *formats.FAMILIES, HARMONY, MISTRAL_LISTING]
    assert all(form.written is not None for form in known)


MORE_KEYS = [', "id": "c1"', ', "id": 1, "x" : {"y": [1, "}"], "z": null}', ', "a": "\\"}"']


@pytest.mark.parametrize("more", MORE_KEYS)
def test_further_keys_behind_the_arguments_are_markup(more: str) -> None:
    text = f'<tool_call>\n{{"name": "look", "arguments": {{}}{more}}}\n</tool_call>'
    for pieces in ([text], list(text), [text[:-1]], [text.removesuffix("\n</tool_call>")]):
        assert read("json_tools", pieces) == [("look", {})]
    assert read("json_tools", [*text, *text, "ok"]) == [("look", {}), ("look", {}), "ok"]


@pytest.mark.parametrize("behind", [", so it is", ', "id": !', ', "id": "c1" and more</tool_call>'])
def test_what_is_no_key_behind_the_arguments_is_text(behind: str) -> None:
    text = f'<tool_call>{{"name": "look", "arguments": {{}}{behind}'
    assert read("json_tools", [text]) == read("json_tools", text) == [("look", {}), behind]


@pytest.mark.parametrize("name", ["files.read", "a/b", "a:b", "a-b_c"])
def test_names_of_mistrals_calls_may_hold_what_names_may(name: str) -> None:
    text = f'[TOOL_CALLS]{name}[ARGS]{{"p": 1}}'
    assert read("mistral", [text]) == read("mistral", text) == [(name, {"p": 1})]
