"""Families whose arguments are a JSON object: `{"name": "look", "arguments": {"at": "x"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from omlx.text import harmony
from omlx.text.calls.format import NAME, CallFormat, Messages, Tools
from omlx.text.calls.repair import repaired
from omlx.text.calls.values import is_function, parse_json, properties

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_VALUE: Final = (
    rf'(?:{_STRING}|[\w.+-]+|(?P<nested>[\[{{](?:{_STRING}|[^"\[\]{{}}]|(?&nested))*[\]}}]))'
)
_MEMBERS: Final = rf"(?:\s*,\s*{_STRING}\s*:\s*{_VALUE})*"
CLOSES: Final = rf"{_MEMBERS}\s*\}}[\s}}\]]*(?:```)?"
"""Pattern after the arguments: ignored further members of the outer object, and brackets."""
BEGINS: Final = (
    r'\s*\[?\s*\{\s*"(?:name|tool_name|function|type|id|arguments|parameters)"\s*:\s*["{]'
)
"""Pattern that begins a call as a JSON object, or a list of such calls."""
_NAME_KEYS: Final = ("name", "tool_name", "function")
_ARGUMENT_KEYS: Final = ("arguments", "parameters", "args")


def _head(name: str = "name", arguments: str = "arguments|parameters", members: str = "") -> str:
    """Return the pattern of a call up to its arguments, if the name comes first.

    `name` and `arguments` are patterns of the keys; `members` is a pattern of members before the
    name.
    """
    return (
        rf'\s*(?:```\w*\s*)?\[?\s*\{{\s*{members}"(?:{name})"\s*:\s*"{NAME}"\s*,\s*'
        rf'"(?:{arguments})"\s*:\s*(?=\{{)'
    )


def read_calls(text: str, tools: Tools) -> list[dict[str, Any]]:
    """Parse a call or a list of calls; arguments may be missing for a known function.

    Raises ValueError.
    """
    parsed = parse_json(repaired(text.strip()))
    return [_call(call, tools) for call in (parsed if isinstance(parsed, list) else [parsed])]


def _call(call: Any, tools: Tools) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise ValueError("a call is an object")
    if isinstance(call.get("function"), Mapping):
        call = {**call, **call["function"]}
    name = next((call[key] for key in _NAME_KEYS if isinstance(call.get(key), str)), None)
    if name is None:
        raise ValueError("a call has a name")
    arguments = next((call[key] for key in _ARGUMENT_KEYS if call.get(key) is not None), None)
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = parse_json(repaired(arguments.strip()))
    if arguments is None and is_function(tools, name):
        arguments = _unnamed(call, name, tools)
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return {"name": name, "arguments": arguments, "id": call.get("id")}


def _unnamed(call: Mapping[str, Any], name: str, tools: Tools) -> Any:
    """Return arguments under an unknown key, or as members of the call itself.

    None for members other than parameters of the function.
    """
    known = (*_NAME_KEYS, *_ARGUMENT_KEYS, "id", "type", "index", "tool_call_id")
    others = {key: value for key, value in call.items() if key not in known}
    objects = [value for value in others.values() if isinstance(value, dict)]
    if len(objects) == len(others) == 1:
        return objects[0]
    return others if others.keys() <= set(properties(tools, name)) else None


_CALL: Final = '{"name": "{name}", "arguments": {arguments}}'
_OBJECT: Final = CallFormat(
    start="",
    end="",
    begins=r"\s*[\[{]",
    head=_head(),
    closes=CLOSES,
    read=read_calls,
    written=_CALL,
)
"""Format of JSON objects one after another."""
_LIST: Final = replace(_OBJECT, together=True, section=("[", "]"), separator=", ")

JSON_TOOLS: Final = replace(
    _OBJECT,
    start="<tool_call>",
    end="</tool_call>",
    templates=(("<tool_call>", "</tool_call>", "arguments"),),
    parser="json_tools",
    written=f"\n{_CALL}\n",
    between="\n",
)
"""Format of Qwen 2.5 and 3, Hermes, Granite 4 and many others."""
MINIMAX_M1: Final = replace(
    _OBJECT,
    start="<tool_calls>",
    end="</tool_calls>",
    templates=(("<tool_calls>", "<beginning_of_sentence>"),),
    written=f"{_CALL}\n",
    together=True,
    section=("\n", ""),
)
GIGACHAT_3: Final = replace(
    _OBJECT,
    start="<|message_sep|>\n\nfunction call<|role_sep|>",
    templates=(("function call", "<|message_sep|>", "<|role_sep|>"),),
    written=f"\n{_CALL}",
)
GIGACHAT_3_1: Final = replace(
    _OBJECT, start="<|function_call|>", templates=(("<|function_call|>", "<|role_sep|>"),)
)
NEMOTRON_NANO_2: Final = replace(
    _LIST, start="<TOOLCALL>", end="</TOOLCALL>", templates=(("<TOOLCALL>",),)
)
APRIEL: Final = replace(
    _LIST, start="<tool_calls>", end="</tool_calls>", templates=(("<tool_calls>[",),)
)
GRANITE_3: Final = replace(
    _LIST,
    start="<|tool_call|>",
    templates=(("<|tool_call|>",),),
    bare=("<tool_call>",),
    begins=r"\s*(?:<tool_call>)?\s*[\[{]",
    head=rf"\s*(?:<tool_call>)?{_head()}",
)
"""Format of Granite 3, which writes the marker as plain text, too."""
INKLING: Final = replace(
    _OBJECT,
    start="<|content_invoke_tool_json|>",
    end="<|end_message|>",
    templates=(("<|content_invoke_tool_json|>",),),
    head=_head(arguments="args|arguments|parameters"),
    written='{"name": "{name}", "args": {arguments}}',
)
"""Format of Inkling: a call is a message, whose header may name the function, too."""
FIREFUNCTION: Final = replace(_LIST, start="functools", templates=(("functools[",),))
APERTUS: Final = replace(
    _LIST,
    start="<|tools_prefix|>",
    end="<|tools_suffix|>",
    templates=(("<|tools_prefix|>",),),
    begins=r"\s*\[",
    head=rf'\s*\[?\s*\{{\s*"(?!(?:arguments|parameters)"){NAME}"\s*:\s*(?=\{{)',
    closes=r"\s*\}[\s}\]]*",
    read=None,
    written='{"{name}": {arguments}}',
)
"""Format whose only key is the name: `[{"look": {"at": "x"}}]`."""

COMMAND_R7B: Final = replace(
    _LIST,
    start="<|START_ACTION|>",
    end="<|END_ACTION|>",
    templates=(("<|START_ACTION|>",),),
    head=_head("tool_name|name", members=r'(?:"tool_call_id"\s*:\s*"[^"]*"\s*,\s*)?'),
    written='{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}',
    section=("[\n    ", "\n]"),
    separator=",\n    ",
)
"""Format of Command R7B and later: `{"tool_call_id": "0", "tool_name": "look", "parameters": {…}}`.

The ids begin at 0 in every answer, so they are not used.
"""
COMMAND_R: Final = replace(
    _LIST,
    start="Action:",
    templates=(("Action:\\n```json", "<|CHATBOT_TOKEN|>"),),
    begins=r"\s*```json\s*\[",
    head=_head("tool_name|name"),
    written='{\n        "tool_name": "{name}",\n        "parameters": {arguments}\n    }',
    section=("\n```json\n[\n    ", "\n]```"),
    separator=",\n    ",
)

_TAG: Final = "<function="
_TYPE: Final = r'(?:"type"\s*:\s*"function"\s*,\s*)?'
LLAMA_3: Final = CallFormat(
    start="<|python_tag|>",
    end="",
    templates=(('{"name": function name, "parameters":', "<|start_header_id|>"),),
    begins=rf'(?:\s*\[?\s*\{{\s*{_TYPE}"(?:name|function)"\s*:|\s*{_TAG}[\w.:/-]+>)',
    bare=(_TAG,),
    leading=r"\{",
    head=rf"(?:\s*;?{_head(members=_TYPE)}|\s*{_TAG}{NAME}>\s*(?=\{{))",
    closes=rf"(?:{CLOSES}|\s*</function>)",
    read=read_calls,
    written='{"name": "{name}", "parameters": {arguments}}',
    together=True,
    separator="; ",
    marked=False,
)
"""Format of Llama 3.1, 3.2 and 3.3: `{"name": "look", "parameters": {"at": "x"}}` as the answer.

The marker may precede the call, further calls may follow a semicolon. Llama 3.1 also writes
`<function=look>{"at": "x"}</function>`.
"""

_NAMED: Final = rf"\s*{NAME}\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?\[ARGS\]\s*(?=\{{)"
_ALONE: Final = rf"\s*{NAME}\s*(?=\{{)"  # without `[ARGS]`: directly behind the marker only
MISTRAL: Final = CallFormat(
    start="[TOOL_CALLS]",
    end="",
    templates=(("[TOOL_CALLS]", "[ARGS]"),),
    parser="mistral",
    begins=r"\s*(?:\[\s*\{|[\w.:/-]+\s*(?:\[(?:CALL_ID|ARGS)\]|\{))",
    head=rf"(?:{_NAMED}|{_ALONE}|{_head()})",
    follows=rf"(?:{_NAMED}|{_head()})",
    closes=rf"(?:{CLOSES})?",
    read=read_calls,
    written="{name}[ARGS]{arguments}",
    short_ids=True,
)
"""Format of Mistral and Magistral: `[TOOL_CALLS]look[ARGS]{"at": "x"}`, with or without an id."""
MISTRAL_NUMBERED: Final = replace(
    MISTRAL,
    templates=(("[TOOL_CALLS]", "[CALL_ID]"),),
    parser="",
    written="{name}[CALL_ID]{id}[ARGS]{arguments}",
)
MISTRAL_LISTING: Final = replace(
    MISTRAL,
    templates=(("[TOOL_CALLS]",),),
    parser="",
    written='{"name": "{name}", "arguments": {arguments}, "id": "{id}"}',
    together=True,
    section=("[", "]"),
    separator=", ",
)

FUNCTIONARY_3_1: Final = CallFormat(
    start="<function=",
    end="</function>",
    templates=(("<function=example_function_name>{",),),
    begins=r"[\w.:/-]+>?\s*\{",
    head=rf"\s*{NAME}>?\s*(?=\{{)",
    follows=rf"\s*<function={NAME}>?\s*(?=\{{)",
    written="{name}>{arguments}",
)
FUNCTIONARY_3_2: Final = CallFormat(
    start=">>>",
    end="",
    templates=((">>>${recipient}",),),
    begins=r"[\w.:/-]+\n\s*\{",
    leading=r"[\w.:/-]+\n",
    head=rf"\s*(?:>>>)?{NAME}\n\s*(?=\{{)",
    written="{name}\n{arguments}",
    together=True,
    separator=">>>",
    marked=False,
)
r"""Format with a recipient before every message: `>>>all\nI look.>>>look\n{"at": "x"}`.

The prompt ends in the first marker.
"""

_BEGIN: Final = "<｜tool▁call▁begin｜>"
_END: Final = "<｜tool▁call▁end｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
DEEPSEEK_3_1: Final = CallFormat(
    start="<｜tool▁calls▁begin｜>",
    end="<｜tool▁calls▁end｜>",
    templates=((_BEGIN, _SEPARATOR),),
    begins=rf"\s*(?:{_BEGIN}|[\w.:/-]+{_SEPARATOR})",
    bare=(_BEGIN,),
    head=rf"\s*(?:{_BEGIN})?\s*(?:function\s*{_SEPARATOR})?\s*{NAME}\s*"
    rf"(?:{_SEPARATOR}\s*(?:```json\s*)?|```json\s*)(?=\{{)",
    closes=rf"\s*(?:```)?\s*(?:{_END})?",
    written=f"{_BEGIN}{{name}}{_SEPARATOR}{{arguments}}{_END}",
    together=True,
)
DEEPSEEK_R1: Final = replace(
    DEEPSEEK_3_1,
    templates=((_BEGIN, _SEPARATOR, "```json"),),
    written=f"{_BEGIN}function{_SEPARATOR}{{name}}\n```json\n{{arguments}}\n```{_END}",
    separator="\n",
)
"""Format of R1 and V3: the word "function", then the name and a code block."""

KIMI_K2: Final = CallFormat(
    start="<|tool_calls_section_begin|>",
    end="<|tool_calls_section_end|>",
    templates=(("<|tool_calls_section_begin|>",),),
    parser="kimi_k2",
    begins=r"\s*(?:<\|tool_call_begin\|>|(?:functions\.)?[\w.-]+:\d)",
    bare=("<|tool_call_begin|>",),
    head=r"\s*(?:<\|tool_call_begin\|>)?\s*(?:(?P<id>(?:functions\.)?(?P<name>[\w.-]+):\d+)|"
    r"(?:functions\.)?(?P<name>[\w.-]+))\s*"
    r"<\|tool_call_argument_begin\|>\s*(?=\{)",
    closes=r"\s*<\|tool_call_end\|>",
    written="<|tool_call_begin|>functions.{name}:{number}"
    "<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
    together=True,
)
SOLAR: Final = CallFormat(
    start="<|tool_calls|>",
    end="<|calls|>",
    templates=(("<|tool_call:begin|>", "<|tool_call:args|>"),),
    begins=r"\s*<\|tool_call:begin\|>",
    bare=("<|tool_call:begin|>",),
    head=rf"\s*<\|tool_call:begin\|>(?:(?P<id>[\w-]*)<\|tool_call:name\|>)?\s*{NAME}\s*"
    r"<\|tool_call:args\|>\s*(?=\{)",
    closes=r"\s*(?:<\|tool_call:end\|>)?",
    written="<|tool_call:begin|>{id}<|tool_call:name|>{name}"
    "<|tool_call:args|>{arguments}<|tool_call:end|>",
    id_pattern="[a-z0-9]{10}",
    together=True,
)

_TO: Final = f"{harmony.CALL}{{name}}"
HARMONY: Final = CallFormat(
    start=harmony.CALL,
    end=harmony.CALL_END,
    begins=r"[\w.:/-]+<\|message\|>",
    head=rf"{NAME}<\|message\|>\s*(?=\{{)",
    closes=r"(?s:(?:(?!<\|call\|>).)*)",
    before=" ",
    written="{name}<|channel|>commentary json<|message|>{arguments}",
    messages=Messages(
        calls=(
            f"<|channel|>commentary {_TO} <|constrain|>json<|message|>{{arguments}}",
            f" {_TO}<|channel|>commentary <|constrain|>json<|message|>{{arguments}}",
            f" {_TO}<|channel|>commentary json<|message|>{{arguments}}",
        ),
        thought="<|channel|>analysis<|message|>",
        preamble="<|channel|>commentary<|message|>",
        answer="<|channel|>final<|message|>",
        between="<|end|><|start|>assistant",
        markers=r"<\|(?:start|end|message|channel|constrain|call|return)\|>",
    ),
)
"""Format of gpt-oss: a message whose header names a function.

`HarmonySplitter` converts every header of a call to the form `to=functions.look<|message|>`.
"""
