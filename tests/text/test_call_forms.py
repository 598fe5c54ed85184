"""Forms of calls that models write beside that of their template: dashed names, arguments without a
name, forgotten keys and markers, broken JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason
from omlx.text.events import ToolCallArguments, ToolCallEnd, ToolCallStart
from omlx.text.output import OutputParser, OutputSpec
from tests.text.test_call_values import parse
from tests.text.test_output import STATS
from tests.text.tokenizers import CHATML, decode_byte_level

WORDS: Final = {
    "gemma": "<|tool_call> <tool_call|>",
    "pythonic": "<|tool_call_start|>",
    "json_tools": "<tool_call> tool_call.name",
    "kimi_k2": "<|tool_calls_section_begin|>",
    "mistral": "[TOOL_CALLS]",
}
TEXT: Final = {"type": "string"}


def function(name: str, **properties: Any) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS: Final = (
    function("f", v=TEXT, n={"type": "integer"}),
    function("get-docs", v=TEXT),
    function("none"),
)
F: Final = "f"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenizerWrapper]:
    return {
        family: decode_byte_level(tmp_path_factory.mktemp(family), f"{{# {words} #}}{CHATML}")
        for family, words in WORDS.items()
    }


@pytest.mark.parametrize(
    ("family", "text", "calls"),
    [
        ("gemma", "call:f{max-results:5}", [(F, {"max-results": 5})]),
        (
            "gemma",
            'call:get-docs{headers:{Content-Type:<|"|>a<|"|>,X-Id:1},all:[{a-b:null}]}',
            [("get-docs", {"headers": {"Content-Type": "a", "X-Id": 1}, "all": [{"a-b": None}]})],
        ),
        (
            "gemma",
            'call:f{v:<|"|>{a:1}, <tool_call|> "x"\n<|"|>}',
            [(F, {"v": '{a:1}, <tool_call|> "x"\n'})],
        ),
        ("gemma", 'call:f{<|"|>v<|"|>:<|"|>x<|"|>,n:-7}', [(F, {"v": "x", "n": -7})]),
        ("gemma", "call:f{n:None,all:[None,True]}", [(F, {"n": None, "all": [None, True]})]),
        ("gemma", "call:f{v:12}", [(F, {"v": "12"})]),
        ("gemma", "call:f{n:9007199254740993}", [(F, {"n": 9007199254740993})]),
        ("gemma", "call:f{}call:none{}", [(F, {}), ("none", {})]),
        ("pythonic", '[get-docs(v="a")]', [("get-docs", {"v": "a"})]),
        ("pythonic", '[f("a", 5)]', [(F, {"v": "a", "n": 5})]),
        ("pythonic", '[f("a", n=5), none()]', [(F, {"v": "a", "n": 5}), ("none", {})]),
        ("pythonic", "[f(v='it's, \"so\"')]", [(F, {"v": 'it\'s, "so"'})]),
        ("pythonic", "[f(v='a\nb\\n')]", [(F, {"v": "a\nb\n"})]),
        ("pythonic", '[f(v="<|tool_call_end|> [f()]")]', [(F, {"v": "<|tool_call_end|> [f()]"})]),
        ("pythonic", '[f(o={"a-b": [1, None]}, n=5)]', [(F, {"o": {"a-b": [1, None]}, "n": 5})]),
        ("json_tools", '{"name": "none"}', [("none", {})]),
        ("json_tools", '{"name": "f", "parameters": {"v": "a"}}', [(F, {"v": "a"})]),
        ("json_tools", '{"arguments": {"v": "a"}, "name": "f"}', [(F, {"v": "a"})]),
        (
            "json_tools",
            '[{"name": "f", "arguments": {}}, {"name": "none", "arguments": {}}]',
            [(F, {}), ("none", {})],
        ),
        ("json_tools", '{"name": "f", "arguments": {"v": "a\nb\t"}}', [(F, {"v": "a\nb\t"})]),
        ("json_tools", '{"name": "f", "arguments": {"v": "a", }}', [(F, {"v": "a"})]),
        ("json_tools", '{"name": "f", "arguments": {"v": "a"', [(F, {"v": "a"})]),
        ("json_tools", "{'name': 'f', 'arguments': {'v': None}}", [(F, {"v": None})]),
    ],
)
def test_forms(
    tokenizers: dict[str, TokenizerWrapper], family: str, text: str, calls: list[Any]
) -> None:
    tokenizer = tokenizers[family]
    whole = f"{tokenizer.tool_call_start}{text}{tokenizer.tool_call_end}"
    for seed in (0, 1, 12):
        assert parse(tokenizer, whole, TOOLS, seed) == ("", calls)
        assert parse(tokenizer, f"A\n{whole}\n{whole} B", TOOLS, seed) == ("A\nB", calls + calls)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("pythonic", '<|tool_call_start|>[g("a")]<|tool_call_end|>'),
        ("pythonic", '<|tool_call_start|>[f("a", 5, 6)]<|tool_call_end|>'),
        ("json_tools", '<tool_call>{"name": "g"}</tool_call>'),
        ("kimi_k2", "<|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{}"),
    ],
)
def test_what_cannot_be_a_call_is_text(
    tokenizers: dict[str, TokenizerWrapper], family: str, text: str
) -> None:
    for seed in (0, 5):
        assert parse(tokenizers[family], text, TOOLS, seed) == (text, [])


def test_kimi_may_forget_its_section(tokenizers: dict[str, TokenizerWrapper]) -> None:
    one = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"v": "a"}<|tool_call_end|>'
    for seed in (0, 1, 12):
        said, calls = parse(tokenizers["kimi_k2"], f"A{one}{one}", TOOLS, seed)
        assert (said, calls) == ("A", [(F, {"v": "a"})] * 2)


def test_a_list_that_was_cut_off_keeps_its_calls(tokenizers: dict[str, TokenizerWrapper]) -> None:
    tokenizer = tokenizers["mistral"]
    text = (
        '[TOOL_CALLS][{"name": "f", "arguments": {"v": "a"}}, {"name": "f", "arguments": {"v": "b'
    )
    parser = OutputParser(tokenizer, OutputSpec(tools=TOOLS))
    events = parser.feed(list(tokenizer.encode(text, add_special_tokens=False)))
    events += parser.finish(FinishReason.LENGTH, STATS)
    starts = [event.name for event in events if isinstance(event, ToolCallStart)]
    arguments = [event.text for event in events if isinstance(event, ToolCallArguments)]
    ends = [event.complete for event in events if isinstance(event, ToolCallEnd)]
    assert (starts, ends) == ([F, F], [True, False])
    assert (json.loads(arguments[0]), arguments[1]) == ({"v": "a"}, '{"v": "b')
