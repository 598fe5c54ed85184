"""Builders for tests of tool calls: functions, masks, walks along a mask, outputs as clients get
them; families and their tokens; calls that mlx-lm has no parser for, as models write them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonschema
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.text.calls import json_formats, tag_formats
from omlx.text.calls.elements import MINIMAX_M3, TOKEN
from omlx.text.calls.format import CallFormat
from omlx.text.calls.gemma import FUNCTION_GEMMA, GEMMA_4
from omlx.text.calls.lfm2 import LFM2
from omlx.text.grammar import GrammarCompiler, Preamble
from omlx.text.mask import GrammarMask
from omlx.text.tools import ToolUse
from tests.schemas import SMALL, WORD, Schema, listed, record
from tests.templates.parsing import parse
from tests.text.tokenizers import CHATML, SPECIAL, decode_byte_level

Calls = list[tuple[str, Any]]


def use(schemas: Mapping[str, Schema], **more: Any) -> ToolUse:
    """Return functions by name and schema of their parameters."""
    functions = ({"name": name, "parameters": schema} for name, schema in schemas.items())
    return ToolUse(tuple({"type": "function", "function": each} for each in functions), **more)


def family(
    folder: Path, words: str, tokens: Sequence[str] = (), template: str = CHATML
) -> TokenizerWrapper:
    """Return a tokenizer whose template has some words, and that has some texts as tokens."""
    comment = "{% raw %}{# " + words + " #}{% endraw %}"
    return decode_byte_level(folder, comment + template, tuple(dict.fromkeys((*SPECIAL, *tokens))))


def grammars(tokenizer: TokenizerWrapper) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


def mask(tokenizer: TokenizerWrapper, use: ToolUse, **preamble: Any) -> GrammarMask:
    of = grammars(tokenizer)
    calls = of.compile_tool_calls(use)
    assert calls is not None
    if use.forced:
        return of.mask(calls, Preamble(**preamble))
    return of.mask(None, Preamble(may_call=True, **preamble), calls)


def ids_of(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    return [int(each) for each in tokenizer.encode(text, add_special_tokens=False)]


def allowed(of: GrammarMask) -> list[int]:
    bits = of.bits()
    assert bits is not None
    return [i for i in range(8 * len(bits)) if bits[i // 8] >> i % 8 & 1]


def say(of: GrammarMask, tokenizer: TokenizerWrapper, text: str) -> list[int]:
    tokens = ids_of(tokenizer, text)
    for token in tokens:
        assert of.advance(token), tokenizer.decode(of.tokens)
    return tokens


def walk(of: GrammarMask, tokenizer: TokenizerWrapper, seed: int, closing: str = "") -> list[int]:
    """Say something at random that the mask allows, while it binds; now and then say `closing`,
    which ends a text as chance alone would not.
    """
    choose, close, start = random.Random(seed), ids_of(tokenizer, closing), len(of.tokens)
    while not of.ended and of.bits() is not None:
        assert len(of.tokens) < 9000
        taken = 0
        while close and choose.random() < 0.9 and taken < len(close) and of.advance(close[taken]):
            taken += 1
        if close and taken == len(close):
            continue
        of.rollback(taken)
        token = choose.choice(allowed(of))
        assert of.advance(token)
        if token in tokenizer.eos_token_ids:
            break
    return of.tokens[start:]


def spoken(of: GrammarMask, tokenizer: TokenizerWrapper, seed: int) -> str:
    """Return something random that the mask allows, up to its end."""
    tokens = walk(of, tokenizer, seed)
    return str(tokenizer.decode([each for each in tokens if each not in tokenizer.eos_token_ids]))


def read(
    tokenizer: TokenizerWrapper,
    tokens: str | Sequence[int],
    use: ToolUse,
    seed: int = 0,
    **spec: Any,
) -> tuple[str, Calls]:
    """Return the text of an output and its calls; `seed` cuts it at random, 0 does not."""
    output = parse(tokenizer, tokens, use.functions, seed, single=use.single, **spec)
    return output.text, output.named


def valid(calls: Calls, schemas: Mapping[str, Schema]) -> bool:
    for name, arguments in calls:
        jsonschema.validate(arguments, schemas[name])
    return True


ARGUMENTS: Final = {"city": "Zürich", "days": 3}
_JSON: Final = '{"city": "Zürich", "days": 3}'


@dataclass(frozen=True, slots=True)
class Example:
    """`tokens` are the markers that the family's tokenizers have as tokens."""

    form: CallFormat
    tokens: tuple[str, ...]
    one: str
    two: str = ""


def _objects(start: str, end: str) -> tuple[str, str]:
    """Return the calls of a family that writes a list of objects between two markers."""
    one = f'{start}[{{"name": "get_weather", "arguments": {_JSON}}}]{end}'
    two = '{"name": "look", "arguments": {}}, {"name": "look", "arguments": {"days": 3}}'
    return one, f"{start}[{two}]{end}"


def _dsml(section: str) -> tuple[str, str]:
    one = (
        f'<｜DSML｜{section}>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        f"</｜DSML｜invoke>\n</｜DSML｜{section}>"
    )
    two = (
        f'<｜DSML｜{section}>\n<｜DSML｜invoke name="look">\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="look">\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        f"</｜DSML｜invoke>\n</｜DSML｜{section}>"
    )
    return one, two


_DEEPSEEK: Final = tuple(
    f"<｜tool▁{name}｜>" for name in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_BEGIN, _END, _CALL, _CALL_END, _SEPARATOR = _DEEPSEEK

EXAMPLES: Final = {
    "llama": Example(
        json_formats.LLAMA_3,
        ("<|python_tag|>",),
        f'{{"name": "get_weather", "parameters": {_JSON}}}',
        '{"name": "look", "parameters": {}}; {"name": "look", "parameters": {"days": 3}}',
    ),
    "deepseek r1": Example(
        json_formats.DEEPSEEK_R1,
        _DEEPSEEK,
        f"{_BEGIN}{_CALL}function{_SEPARATOR}get_weather\n```json\n{_JSON}\n```{_CALL_END}{_END}",
        f"{_BEGIN}{_CALL}function{_SEPARATOR}look\n```json\n{{}}\n```{_CALL_END}\n"
        f'{_CALL}function{_SEPARATOR}look\n```json\n{{"days": 3}}\n```{_CALL_END}{_END}',
    ),
    "deepseek v3.1": Example(
        json_formats.DEEPSEEK_3_1,
        _DEEPSEEK,
        f"{_BEGIN}{_CALL}get_weather{_SEPARATOR}{_JSON}{_CALL_END}{_END}",
        f"{_BEGIN}{_CALL}look{_SEPARATOR}{{}}{_CALL_END}"
        f'{_CALL}look{_SEPARATOR}{{"days": 3}}{_CALL_END}{_END}',
    ),
    "deepseek v3.2": Example(tag_formats.DEEPSEEK_3_2, ("｜DSML｜",), *_dsml("function_calls")),
    "deepseek v4": Example(tag_formats.DEEPSEEK_4, ("｜DSML｜",), *_dsml("tool_calls")),
    "granite 3": Example(
        json_formats.GRANITE_3, ("<|tool_call|>",), *_objects("<|tool_call|>", "")
    ),
    "nemotron nano 2": Example(
        json_formats.NEMOTRON_NANO_2,
        ("<TOOLCALL>", "</TOOLCALL>"),
        *_objects("<TOOLCALL>", "</TOOLCALL>"),
    ),
    "apriel": Example(json_formats.APRIEL, (), *_objects("<tool_calls>", "</tool_calls>")),
    "firefunction": Example(json_formats.FIREFUNCTION, (), *_objects("functools", "")),
    "apertus": Example(
        json_formats.APERTUS,
        ("<|tools_prefix|>", "<|tools_suffix|>"),
        f'<|tools_prefix|>[{{"get_weather": {_JSON}}}]<|tools_suffix|>',
        '<|tools_prefix|>[{"look": {}}, {"look": {"days": 3}}]<|tools_suffix|>',
    ),
    "minimax m1": Example(
        json_formats.MINIMAX_M1,
        (),
        f'<tool_calls>\n{{"name": "get_weather", "arguments": {_JSON}}}\n</tool_calls>',
        '<tool_calls>\n{"name": "look", "arguments": {}}\n'
        '{"name": "look", "arguments": {"days": 3}}\n</tool_calls>',
    ),
    "gigachat 3": Example(
        json_formats.GIGACHAT_3,
        ("<|message_sep|>", "<|role_sep|>"),
        "<|message_sep|>\n\nfunction call<|role_sep|>\n"
        f'{{"name": "get_weather", "arguments": {_JSON}}}',
    ),
    "gigachat 3.1": Example(
        json_formats.GIGACHAT_3_1,
        ("<|function_call|>",),
        f'<|function_call|>{{"name": "get_weather", "arguments": {_JSON}}}',
    ),
    "command r7b": Example(
        json_formats.COMMAND_R7B,
        ("<|START_ACTION|>", "<|END_ACTION|>"),
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
        f"{_JSON}}}\n]<|END_ACTION|>",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "look", "parameters": {}},\n'
        '    {"tool_call_id": "1", "tool_name": "look", "parameters": {"days": 3}}\n'
        "]<|END_ACTION|>",
    ),
    "command r": Example(
        json_formats.COMMAND_R,
        (),
        'Action:\n```json\n[\n    {\n        "tool_name": "get_weather",\n        "parameters": '
        f"{_JSON}\n    }}\n]```",
        'Action:\n```json\n[{"tool_name": "look", "parameters": {}},\n'
        '{"tool_name": "look", "parameters": {"days": 3}}]\n```',
    ),
    "seed-oss": Example(
        tag_formats.SEED_OSS,
        ("<seed:tool_call>", "</seed:tool_call>"),
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Zürich</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
        "<seed:tool_call>\n<function=look>\n</function>\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=look>\n<parameter=days>3</parameter>\n</function>\n"
        "</seed:tool_call>",
    ),
    "functionary 3.1": Example(
        json_formats.FUNCTIONARY_3_1,
        (),
        f"<function=get_weather>{_JSON}</function>",
        '<function=look>{}</function><function=look>{"days": 3}</function>',
    ),
    "functionary 3.2": Example(
        json_formats.FUNCTIONARY_3_2, (), f"get_weather\n{_JSON}", 'look\n{}>>>look\n{"days": 3}'
    ),
    "hy3": Example(
        tag_formats.HY3,
        ("<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_call:opensource>"),
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Zürich</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        "<tool_calls:opensource>\n<tool_call:opensource>look<tool_sep:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>look<tool_sep:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "hy3 preview": Example(
        tag_formats.HY3_PREVIEW,
        ("<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>", "<tool_sep>"),
        "<tool_calls>\n<tool_call>get_weather<tool_sep>\n<arg_key>city</arg_key>\n"
        "<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
        "</tool_call>\n</tool_calls>",
        "<tool_calls>\n<tool_call>look<tool_sep>\n</tool_call>\n<tool_call>look<tool_sep>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n</tool_calls>",
    ),
    "hy4": Example(
        tag_formats.HY4,
        ("<tool_calls>", "</tool_calls>", "<tool_call>", "</tool_call>"),
        "<tool_calls><tool_call>get_weather<arg_key>city</arg_key><arg_value>Zürich</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call></tool_calls>",
        "<tool_calls><tool_call>look</tool_call><tool_call>look<arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call></tool_calls>",
    ),
    "k2 horizon": Example(
        tag_formats.K2_HORIZON,
        ("<ifm|tool_calls>", "</ifm|tool_calls>", "<ifm|tool_call>", "</ifm|tool_call>"),
        "<ifm|tool_calls>\n<ifm|tool_call>get_weather\n<ifm|arg_key>city</ifm|arg_key>\n"
        "<ifm|arg_value>Zürich</ifm|arg_value>\n<ifm|arg_key>days</ifm|arg_key>\n"
        "<ifm|arg_type>integer</ifm|arg_type>\n<ifm|arg_value>3</ifm|arg_value>\n"
        "</ifm|tool_call>\n</ifm|tool_calls>",
        "<ifm|tool_calls><ifm|tool_call>look</ifm|tool_call><ifm|tool_call>look"
        "<ifm|arg_key>days</ifm|arg_key><ifm|arg_value>3</ifm|arg_value></ifm|tool_call>"
        "</ifm|tool_calls>",
    ),
    "inkling": Example(
        json_formats.INKLING,
        ("<|content_invoke_tool_json|>", "<|end_message|>", "<|message_model|>"),
        f'<|content_invoke_tool_json|>{{"name": "get_weather", "args": {_JSON}}}<|end_message|>',
        '<|content_invoke_tool_json|>{"name": "look", "args": {}}<|end_message|>'
        '<|content_invoke_tool_json|>{"name": "look", "args": {"days": 3}}<|end_message|>',
    ),
    "solar": Example(
        json_formats.SOLAR,
        ("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", "<|tool_call:end|>"),
        "<|tool_calls|><|tool_call:begin|>a1b2c9d4e5<|tool_call:name|>get_weather"
        f"<|tool_call:args|>{_JSON}<|tool_call:end|><|calls|>",
        "<|tool_calls|><|tool_call:begin|>a1b2c9d4e5<|tool_call:name|>look<|tool_call:args|>{}"
        "<|tool_call:end|><|tool_call:begin|>b1b2c9d4e5<|tool_call:name|>look<|tool_call:args|>"
        '{"days": 3}<|tool_call:end|><|calls|>',
    ),
    "minimax m3": Example(
        MINIMAX_M3,
        ("]<]minimax[>[",),
        f'{TOKEN}<tool_call>\n{TOKEN}<invoke name="get_weather">{TOKEN}<city>Zürich{TOKEN}</city>'
        f"{TOKEN}<days>3{TOKEN}</days>{TOKEN}</invoke>\n{TOKEN}</tool_call>",
        f'{TOKEN}<tool_call>\n{TOKEN}<invoke name="look">{TOKEN}</invoke>\n'
        f'{TOKEN}<invoke name="look">{TOKEN}<days>3{TOKEN}</days>{TOKEN}</invoke>\n'
        f"{TOKEN}</tool_call>",
    ),
}


@dataclass(frozen=True, slots=True)
class Family:
    """A format, tokens of tokenizers that have it, and words of their templates."""

    form: CallFormat
    tokens: tuple[str, ...] = ()
    words: str = ""

    @property
    def closing(self) -> str:
        """What ends a text."""
        tags = self.form.tags
        return tags.padding + tags.closes if tags is not None else self.form.syntax.ender or '"'

    def load(self, folder: Path) -> TokenizerWrapper:
        return family(folder, self.words or " ".join(self.form.templates[0]), self.tokens)


_QWEN: Final = ("<tool_call>", "</tool_call>")
_HERMES: Final = "<tool_call> tool_call.name"
_KIMI: Final = ("calls_section_begin", "calls_section_end", "call_begin", "call_end")
_GEMMA: Final = "<|tool_call> <tool_call|>"
JSON_FAMILIES: Final = {
    "json tools": Family(json_formats.JSON_TOOLS, _QWEN, _HERMES),
    "json tools, markers as text": Family(json_formats.JSON_TOOLS, (), _HERMES),
    "mistral": Family(json_formats.MISTRAL, ("[TOOL_CALLS]", "[ARGS]")),
    "mistral, with ids": Family(
        json_formats.MISTRAL_NUMBERED,
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        "[TOOL_CALLS] [CALL_ID] [ARGS]",
    ),
    "mistral, a list": Family(json_formats.MISTRAL_LISTING, ("[TOOL_CALLS]",)),
    "kimi k2": Family(
        json_formats.KIMI_K2,
        tuple(f"<|tool_{each}|>" for each in (*_KIMI, "call_argument_begin")),
    ),
}
FAMILIES: Final = {
    **JSON_FAMILIES,
    **{name: Family(each.form, each.tokens) for name, each in EXAMPLES.items()},
    "gemma 4": Family(GEMMA_4, ("<|tool_call>", "<tool_call|>", '<|"|>'), _GEMMA),
    "gemma 4, markers as text": Family(GEMMA_4, (), _GEMMA),
    "functiongemma": Family(
        FUNCTION_GEMMA,
        ("<start_function_call>", "<end_function_call>", "<escape>"),
        "<start_function_call>",
    ),
    "lfm2": Family(LFM2, ("<|tool_call_start|>", "<|tool_call_end|>"), "<|tool_call_start|>"),
    "kimi k3": Family(
        tag_formats.KIMI_K3,
        ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
        "<|open|>tools<|sep|> argument key=",
    ),
    "minimax m2": Family(tag_formats.MINIMAX_M2),
    "minimax m3, markers as text": Family(MINIMAX_M3),
    "minicpm5": Family(tag_formats.MINICPM5),
    "muse": Family(tag_formats.MUSE_SPARK, (), "<atem:function_calls>"),
    "longcat": Family(tag_formats.LONGCAT, (), "<longcat_tool_call> <longcat_arg_key>"),
    "glm": Family(tag_formats.GLM, ("<tool_call>", "</arg_value>")),
    "glm, tags in lines": Family(tag_formats.GLM_LINES),
    "qwen coder": Family(tag_formats.QWEN3_CODER, (), "<tool_call>\n<function="),
    "qwen coder, markers of one token": Family(
        tag_formats.QWEN3_CODER, _QWEN, "<tool_call>\n<function="
    ),
}

TEXT: Final = {"type": "string"}
NULL: Final = {"type": "null"}
_TREE: Final = record(["size"], size=SMALL, more=listed({"$ref": "#/$defs/tree"}, most=2))
WIDE: Final = record(
    ["city", "size", "where"],
    {"$defs": {"tree": _TREE, "spot": record(x=SMALL, name={"enum": ["a", "b, c"]})}},
    city=TEXT,
    unit={"enum": ["red", "größer", 5]},
    size={"type": "integer", "minimum": 10**18, "maximum": 10**18 + 128},
    warm={"type": ["boolean", "null"]},
    tags=listed({"enum": ['a "b"', "x, y", "]"]}),
    where={"$ref": "#/$defs/spot"},
    tree={"$ref": "#/$defs/tree"},
    either={"anyOf": [SMALL, record(a=WORD), NULL]},
    both={"allOf": [{"$ref": "#/$defs/spot"}], "description": "x"},
    kind={"const": "fixed"},
    empty=record(),
    one=listed(SMALL, most=1),
)
UNIONS: Final = record(
    list("abcdefgh"),
    {"$defs": {"small": SMALL}},
    a={"anyOf": [SMALL, NULL]},
    b={"$ref": "#/$defs/small"},
    c={"anyOf": [{"enum": ["red", "green"]}, NULL]},
    d={"enum": ["red", 5, None, True]},
    e={"type": ["integer", "boolean"], "minimum": 0, "maximum": 9},
    f={"anyOf": [TEXT, listed(SMALL), NULL]},
    g={"oneOf": [{"const": 1}, {"const": "two"}]},
    h={"anyOf": [TEXT, {"type": "integer", "minimum": 0}]},
)
SCHEMAS: Final = {"wide": WIDE, "unions": UNIONS, "look": record()}
"""What all families are held to."""
