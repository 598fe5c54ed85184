"""Past tool calls as the text that a model generates for them, for chat templates that do not
render calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from omlx.text.calls.format import CallFormat
from omlx.text.calls.markup import call_format
from omlx.text.calls.values import type_of

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

_JSON: Final = '{"name": "{name}", "arguments": {arguments}}'
"""A call in a family whose text is not known."""
_NO_FORMAT: Final = CallFormat(start="", end="", between="\n")
_PLACES: Final = re.compile(r"\{(name|number|id|arguments|value|text|type)\}")


def write_calls(tokenizer: TokenizerWrapper, calls: Sequence[Mapping[str, Any]]) -> str:
    """Write calls between the markers of the model's family, as JSON if its form is not known."""
    form = call_format(tokenizer) or _NO_FORMAT
    bodies = [_call(form, call, number) for number, call in enumerate(calls)]
    if form.together:
        bodies = [form.separator.join(bodies)]
    before, behind = form.section
    start = form.before + form.start if form.marked else ""
    bodies = [f"{start}{before}{body}{behind}{form.end}" for body in bodies]
    return (form.between or "\n").join(bodies)


def _call(form: CallFormat, call: Mapping[str, Any], number: int) -> str:
    function = call["function"]
    values = {
        "name": function["name"],
        "number": str(number),
        "id": call["id"],
        "arguments": _arguments(form, function["arguments"]),
    }
    return _filled(form.written or _JSON, values)


def _arguments(form: CallFormat, arguments: Mapping[str, Any] | str) -> str:
    if isinstance(arguments, str):
        return arguments
    if form.syntax is not None:
        return form.syntax.text(arguments)
    if form.parameter is None:
        return json.dumps(arguments, ensure_ascii=False)
    parameters = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        kind = type_of(value)
        places = {"name": name, "value": text, "type": "number" if kind == "integer" else kind}
        places["text"] = json.dumps(isinstance(value, str))
        parameters.append(_filled(form.parameter, places))
    return "".join(parameters)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACES.sub(lambda place: values[place[1]], text)
