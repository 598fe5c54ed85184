"""The form that an answer is asked to have, in whichever field a client says so.

OpenAI's `response_format` and `text.format` and Anthropic's `output_config.format` name a JSON schema. Clients of other
servers send vLLM's `structured_outputs` (`guided_…` before), or llama.cpp's `json_schema` and `grammar`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from omlx.errors import BadRequest
from omlx.text.grammar import GrammarKind, StructuredOutput

MAX_BYTES: Final = 256 << 10
ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}

STRUCTURED: Final = "structured_outputs"
ELSEWHERE: Final = {
    "guided_json": GrammarKind.JSON,
    "guided_regex": GrammarKind.REGEX,
    "guided_choice": GrammarKind.CHOICE,
    "guided_grammar": GrammarKind.GRAMMAR,
    "json_schema": GrammarKind.JSON,
    "grammar": GrammarKind.GRAMMAR,
}


def wanted(
    format: Mapping[str, Any] | None, param: str, others: Mapping[str, Any] | None = None
) -> StructuredOutput | None:
    """The form that is asked for, by the standard field called `param` or by a field among `others`; None: free text.

    Raises BadRequest for a form that cannot be read, for one that is too large, and for two of them.
    """
    found = [_standard(format or {}, param)]
    for name, value in (others or {}).items():
        if name in ELSEWHERE:
            found.append(_form(ELSEWHERE[name], value, name))
        elif name == STRUCTURED:
            found += _structured(value)
    forms = [form for form in found if form is not None]
    if len(forms) > 1:
        raise BadRequest(
            "format.several", param=forms[1].param, field=forms[0].param, other=forms[1].param
        )
    return forms[0] if forms else None


def _standard(format: Mapping[str, Any], param: str) -> StructuredOutput | None:
    """OpenAI's chat has the schema one level deeper than everybody else; llama.cpp's objects may have one too."""
    match kind := format.get("type", "text"):
        case "text":
            return None
        case "json_object":
            schema = format.get("schema")
            return _form(
                GrammarKind.JSON, ANY_OBJECT if schema in (None, "") else schema, f"{param}.schema"
            )
        case "json_schema":
            inner, at = (
                (format["json_schema"], f"{param}.json_schema")
                if kind in format
                else (format, param)
            )
            if not isinstance(inner, Mapping) or inner.get("schema") is None:
                raise BadRequest("request.missing", param=f"{at}.schema", field=f"{at}.schema")
            return _form(
                GrammarKind.JSON,
                inner["schema"],
                f"{at}.schema",
                lenient=inner.get("strict") is False,
            )
    raise BadRequest("request.format", param=param, field=param, format=str(kind)[:100])


def _structured(value: object) -> list[StructuredOutput | None]:
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise _mistyped(STRUCTURED, "an object")
    asked = {name: each for name, each in value.items() if each not in (None, False)}
    if "structural_tag" in asked:
        raise BadRequest(
            "request.unsupported", param=STRUCTURED, field=f"{STRUCTURED}.structural_tag"
        )
    found = [
        _form(kind, asked[kind], f"{STRUCTURED}.{kind}") for kind in GrammarKind if kind in asked
    ]
    if "json_object" in asked:
        found.append(_form(GrammarKind.JSON, ANY_OBJECT, f"{STRUCTURED}.json_object"))
    return found


def _form(
    kind: GrammarKind, value: object, param: str, *, lenient: bool = False
) -> StructuredOutput | None:
    """None where nothing is asked for."""
    if value is None or value == "":
        return None
    match kind, value:
        case GrammarKind.JSON, str():
            text = value
        case GrammarKind.JSON, Mapping() | bool():
            text = json.dumps(value)
        case GrammarKind.CHOICE, [_, *_] if all(isinstance(each, str) and each for each in value):
            text = json.dumps(value)
        case ((GrammarKind.REGEX | GrammarKind.GRAMMAR), str()):
            text = value
        case _:
            raise _mistyped(param, _EXPECTED[kind])
    if (size := len(text.encode(errors="replace"))) > MAX_BYTES:
        raise BadRequest("request.too_large", param=param, field=param, size=size, limit=MAX_BYTES)
    return StructuredOutput(kind, text, param, lenient)


_EXPECTED: Final = {
    GrammarKind.JSON: "a JSON schema",
    GrammarKind.REGEX: "a regular expression",
    GrammarKind.CHOICE: "a list of texts, none of them empty",
    GrammarKind.GRAMMAR: "a grammar",
}


def _mistyped(param: str, expected: str) -> BadRequest:
    return BadRequest("request.type", param=param, field=param, detail=f"expected {expected}")
