"""Variables of chat templates that read others than `tools`."""

from __future__ import annotations

import json
from pathlib import Path

from omlx.text.template.process import render_template, with_further_variables
from tests.text.tokenizers import CHATML, decode_byte_level

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_firefunction_gets_functions_as_text(tmp_path: Path) -> None:
    template = CHATML + "{{ '' + functions }} Today is {{ '' + datetime }}."
    model = decode_byte_level(tmp_path, template)
    text = render_template(model, [{"role": "user", "content": "x"}], {"tools": [TOOL]})
    functions, _, day = text.partition(" Today is ")
    assert json.loads(functions[functions.index("[") :]) == [TOOL["function"]]
    assert len(day) == len("Nov 22 2026.")


def test_others_get_what_was_asked(tmp_path: Path) -> None:
    assert with_further_variables(CHATML, {"tools": [TOOL]}) == {"tools": [TOOL]}
