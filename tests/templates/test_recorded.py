"""Outputs that llama.cpp's tests have recorded of each family mean the same here: text, reasoning
and calls, as far as white space around texts goes.
"""

from __future__ import annotations

import json
from typing import Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text.template.render import render
from omlx.text.tools import ToolUse
from tests.templates.fetched import TEMPLATES, tokenizer
from tests.templates.parsing import parse
from tests.templates.recorded import Case, cases

DIFFERENT: Final[dict[str, dict[int, str]]] = {
    "mistralai-Ministral-3-14B-Reasoning-2512": {
        2648: "a block of code around JSON: a grammar allows none here"
    },
    "meta-llama-Llama-3.1-8B-Instruct": {
        6302: "a block of code around JSON: a grammar allows none here"
    },
    "inclusionai-ling-3.0-flash": {
        4683: "text behind a call in reasoning that never closed stays reasoning",
        4716: "reasoning given back as content",
    },
    "CohereForAI-c4ai-command-r-plus-tool_use": {
        5893: "the marker of the generation prompt again, which the prompt has already"
    },
    "Apriel-1.6-15b-Thinker-fixed": {
        6211: "the line that opens reasoning is a marker here, not a part of it",
        6219: "the line that opens reasoning is a marker here, not a part of it",
    },
    "muse-glimmer": {6391: "a call quoted in an answer is a call here"},
}
"""Cases by template and line that mean something else here, and why."""


def difference(case: Case) -> str:
    """Return what differs; empty if nothing does."""
    model = tokenizer(case.template)
    try:
        return _difference(case, model)
    except BadRequest as refusal:
        return f"{case.template}:{case.line}: {refusal.code}"


def _difference(case: Case, model: TokenizerWrapper) -> str:
    use = ToolUse(tuple(case.tools)) if case.tools else None
    variables = {"enable_thinking": case.options.get("enable_thinking", True)}
    prompt = render(model, [{"role": "user", "content": "Hey there!"}], variables, tools=use)
    output = parse(model, case.text, case.tools, thinking=prompt.thinking)
    expected = case.expected
    got = [(name, _value(text)) for _, name, text in output.calls]
    wanted = [(name, _value(text)) for name, text, _ in expected.calls]
    for label, mine, theirs in (
        ("content", output.text.strip(), expected.content.strip()),
        ("reasoning", output.reasoning.strip(), expected.reasoning.strip()),
        ("calls", got, wanted),
    ):
        if mine != theirs:
            return f"{case.template}:{case.line}: {label} {mine!r}, recorded {theirs!r}"
    return ""


def _value(text: str) -> object:
    return json.loads(text or "{}")


@pytest.mark.parametrize("name", TEMPLATES)
def test_recorded_outputs_mean_the_same(name: str) -> None:
    differences = {}
    for case in cases().get(name, []):
        if case.skipped is None:
            differences[case.line] = difference(case)
    differences = {line: text for line, text in differences.items() if text}
    listed = DIFFERENT.get(name, {})
    assert [text for line, text in differences.items() if line not in listed] == []
    assert set(listed) == set(differences)


def test_most_cases_are_read() -> None:
    read = [case for of_template in cases().values() for case in of_template]
    assert len(read) > 450
    assert sum(case.skipped is None for case in read) > 350
