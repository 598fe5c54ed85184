"""Calls that a real chat template renders are read back as what they were: every value, exactly."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text.calls.format import CallFormat
from omlx.text.calls.markup import call_format
from omlx.text.template.render import render
from omlx.text.tools import ToolUse
from tests.lanes import few
from tests.templates.fetched import TEMPLATES, tokenizer
from tests.templates.parsing import parse
from tests.templates.values import DEFINITIONS, VALUES
from tests.text.calls import mask

NAME: Final = "look_up"
ASKED, RESULT = "zyxasked", "zyxresult"
CALL_ID: Final = "a1b2c3d4e"
WITHOUT_TOOLS: Final = {
    "HuggingFaceTB-SmolLM3-3B",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
"""Templates that show functions to the model in no way."""
NO_PLAIN_TYPE: Final = [
    number for number, (schema, _) in enumerate(VALUES) if not isinstance(schema.get("type"), str)
]
STRUCTURES: Final = [
    number for number, (_, value) in enumerate(VALUES) if isinstance(value, list | dict)
]
BACKSLASHES: Final = [
    number for number, (_, value) in enumerate(VALUES) if isinstance(value, str) and "\\" in value
]
FAULTS: Final = {
    # A schema whose type is a list, or is not there, is written by endless recursion.
    # Here that goes for objects and lists without a schema of what they hold, too.
    "CohereForAI-c4ai-command-r-plus-tool_use": [*NO_PLAIN_TYPE, *STRUCTURES],
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": NO_PLAIN_TYPE,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": NO_PLAIN_TYPE,
    # Backslashes in strings of Python are not escaped.
    "LFM2.5-8B-A1B": BACKSLASHES,
}
"""Values that a template itself does not bring through."""
UNRENDERED: Final = {
    "LFM2-8B-A1B": "calls are not rendered",
    "LFM2.5-Instruct": "calls are not rendered",
    "llama-cpp-deepseek-r1": "functions are rendered by filters that only llama.cpp has",
}
"""Templates that render no call at all, and why."""
UNSAID: Final[dict[str, list[int]]] = {
    # Members of a value without a schema, which could be read as any type.
    "MiniMax-M3": STRUCTURES,
    # Lists and objects are written as Python does.
    "ByteDance-Seed-OSS": STRUCTURES,
    "openbmb-MiniCPM5-1B": STRUCTURES,
}
"""Values that a template writes and a grammar does not allow."""
OTHERWISE: Final = {
    "Apriel-1.6-15b-Thinker-fixed": "an id follows the arguments",
    "CohereForAI-c4ai-command-r-plus-tool_use": "members stand on lines of their own",
    "LFM2.5-8B-A1B": "texts stand between single quotes",
    "Reka-Edge": "letters are escaped as \\u00f6",
    "inclusionai-ling-3.0-flash": "no line break between arguments, against its own instruction",
    "unsloth-Apriel-1.5": "an id follows the arguments",
}
"""Templates whose calls are written otherwise than a grammar allows, and how."""
WITH_TOOLS: Final = [name for name in TEMPLATES if name not in WITHOUT_TOOLS]
ROUND_TRIPS: Final = [name for name in WITH_TOOLS if name not in UNRENDERED]


def use(numbers: Collection[int]) -> ToolUse:
    """Return the use of a function with these values as its parameters."""
    description = {"description": "Of what."}
    properties = {f"v{number}": {**VALUES[number][0], **description} for number in numbers}
    parameters = {"type": "object", "properties": properties, "$defs": DEFINITIONS}
    function = {"name": NAME, "description": "Look it up.", "parameters": parameters}
    return ToolUse(({"type": "function", "function": function},))


def rendered(
    model: TokenizerWrapper, tools: ToolUse, arguments: dict[str, Any], call_id: str = CALL_ID
) -> str:
    """Return what a template writes between a question and the result of a call."""
    call = {"id": call_id, "function": {"name": NAME, "arguments": arguments}, "type": "function"}
    messages = [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": RESULT},
    ]
    prompt = render(model, messages, tools=tools)
    text = str(model.decode(list(prompt.tokens)))
    return text.rpartition(ASKED)[2].partition(RESULT)[0]


def from_the_call(text: str, form: CallFormat) -> str:
    """Return a text from where its call begins."""
    beginnings = [form.start, *form.bare]
    if form.leading:
        beginnings += ['{"name"', f"{NAME}\n"]
    for beginning in beginnings:
        if beginning in text:
            return text[text.index(beginning) :]
    raise AssertionError(f"no call in {text!r}")


@pytest.mark.parametrize("name", few(ROUND_TRIPS, every=3))
def test_every_value_comes_back(name: str) -> None:
    model = tokenizer(name)
    numbers = [number for number in range(len(VALUES)) if number not in FAULTS.get(name, ())]
    arguments = {f"v{number}": VALUES[number][1] for number in numbers}
    tools = use(numbers)
    form = call_format(model)
    assert form is not None
    text = from_the_call(rendered(model, tools, arguments), form)
    (call,) = parse(model, text, tools.functions).calls
    assert call[1] == NAME
    parsed = json.loads(call[2])
    assert repr([parsed.get(key) for key in arguments]) == repr(list(arguments.values()))
    assert len(parsed) == len(arguments)


@pytest.mark.parametrize(
    "name", few((name for name in ROUND_TRIPS if name not in OTHERWISE), every=3)
)
def test_what_a_template_writes_may_be_said(name: str) -> None:
    model = tokenizer(name)
    lost = [*FAULTS.get(name, ()), *UNSAID.get(name, ())]
    numbers = [number for number in range(len(VALUES)) if number not in lost]
    # By their names, as some templates sort them.
    numbers.sort(key=lambda number: f"v{number}")
    arguments = {f"v{number}": VALUES[number][1] for number in numbers}
    tools = replace(use(numbers), forced=True, single=True, name=NAME)
    form = call_format(model)
    assert form is not None
    call_id = "a1b2c3d4e5" if "Solar" in name else CALL_ID
    text = rendered(model, tools, arguments, call_id)
    text = form.before + from_the_call(text, form).removeprefix(">>>")
    of = mask(model, tools)
    tokens = model.encode(text, add_special_tokens=False)
    assert all(of.ended or of.advance(token) for token in tokens), model.decode(of.tokens)[-200:]
    assert of.ended


@pytest.mark.parametrize("name", sorted(WITHOUT_TOOLS))
def test_a_template_without_tools_refuses_them(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        rendered(tokenizer(name), use([0]), {"v0": "x"})
    assert caught.value.code == "tools.no_format"


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_every_other_template_has_a_format_whose_calls_can_be_forced(name: str) -> None:
    form = call_format(tokenizer(name))
    assert form is not None
    assert form.written is not None


def test_there_are_63_values() -> None:
    assert len(VALUES) == 63
