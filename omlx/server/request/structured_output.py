"""Structured outputs: the field of a request that constrains the answer, in any dialect.

OpenAI's `response_format` and `text.format` and Anthropic's `output_config.format` hold a JSON
schema. Clients of other servers send vLLM's `structured_outputs` (formerly `guided_…`), or
llama.cpp's `json_schema` and `grammar`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from omlx.errors import BadRequest
from omlx.server.http.errors import field_error
from omlx.text.grammar import GrammarKind, StructuredOutput

MAX_BYTES: Final = 256 << 10
ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
ANY_JSON: Final = "json"
"""Ollama's name for it."""

VLLM: Final = "structured_outputs"
OTHER_FIELDS: Final = {
    "guided_json": GrammarKind.JSON,
    "guided_regex": GrammarKind.REGEX,
    "guided_choice": GrammarKind.CHOICE,
    "guided_grammar": GrammarKind.GRAMMAR,
    "json_schema": GrammarKind.JSON,
    "grammar": GrammarKind.GRAMMAR,
}


def structured_output(
    format: Mapping[str, Any] | None, param: str, others: Mapping[str, Any] | None = None
) -> StructuredOutput | None:
    """The structured output that the standard field, called `param`, or one of `others` requests;
    None: free text.

    Raises BadRequest for one that is invalid or too large, and for several.
    """
    found = [_standard(format or {}, param)]
    for name, value in (others or {}).items():
        if name in OTHER_FIELDS:
            found.append(_read(OTHER_FIELDS[name], value, name))
        elif name == VLLM:
            found += _vllm(value)
    outputs = [output for output in found if output is not None]
    if len(outputs) > 1:
        first, second = outputs[0].param, outputs[1].param
        raise BadRequest("format.several", param=second, field=first, other=second)
    return next(iter(outputs), None)


def json_output(schema: object, param: str) -> StructuredOutput | None:
    """The structured output of a JSON schema, or of `json` for any object; None if it is empty.

    Raises BadRequest for anything else, and for a schema that is too large.
    """
    return _read(GrammarKind.JSON, ANY_OBJECT if schema == ANY_JSON else schema, param)


def _standard(format: Mapping[str, Any], param: str) -> StructuredOutput | None:
    """The schema is one level deeper in OpenAI's chat than elsewhere; llama.cpp's `json_object`
    may have one too."""
    match kind := format.get("type", "text"):
        case "text":
            return None
        case "json_object":
            schema = format.get("schema")
            if schema in (None, ""):
                schema = ANY_OBJECT
            return _read(GrammarKind.JSON, schema, f"{param}.schema")
        case "json_schema":
            inner, field = format, f"{param}.schema"
            if "schema" not in format and param == "response_format" and kind not in format:
                raise field_error("request.missing", f"{param}.{kind}")
            if kind in format:
                inner, field = format[kind], f"{param}.json_schema.schema"
            if not isinstance(inner, Mapping) or inner.get("schema") is None:
                raise field_error("request.missing", field)
            strict = inner.get("strict") is True
            return _read(GrammarKind.JSON, inner["schema"], field, strict=strict)
    raise field_error("request.format", param, format=str(kind)[:100])


def _vllm(value: object) -> list[StructuredOutput | None]:
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise _mistyped(VLLM, "object")
    given = {name: option for name, option in value.items() if option not in (None, False)}
    if "structural_tag" in given:
        raise BadRequest("request.unsupported", param=VLLM, field=f"{VLLM}.structural_tag")
    found = [_read(kind, given[kind], f"{VLLM}.{kind}") for kind in GrammarKind if kind in given]
    if "json_object" in given:
        found.append(_read(GrammarKind.JSON, ANY_OBJECT, f"{VLLM}.json_object"))
    return found


def _read(
    kind: GrammarKind, value: object, param: str, *, strict: bool = False
) -> StructuredOutput | None:
    """None for an empty `value`.

    Raises BadRequest for a value of the wrong type, or one that is too large.
    """
    if value is None or value == "":
        return None
    match kind, value:
        case GrammarKind.JSON, str():
            text = value
        case GrammarKind.JSON, Mapping() | bool():
            text = json.dumps(value)
        case GrammarKind.CHOICE, [_, *_] if all(isinstance(text, str) and text for text in value):
            text = json.dumps(value)
        case ((GrammarKind.REGEX | GrammarKind.GRAMMAR), str()):
            text = value
        case _:
            raise _mistyped(param, _EXPECTED[kind])
    if (size := len(text.encode(errors="replace"))) > MAX_BYTES:
        raise field_error("request.too_large", param, size=size, limit=MAX_BYTES)
    return StructuredOutput(kind, text, param, strict)


_EXPECTED: Final = {
    GrammarKind.JSON: "object | boolean | string",
    GrammarKind.REGEX: "string",
    GrammarKind.CHOICE: "[string, …], length ≥ 1",
    GrammarKind.GRAMMAR: "string",
}


def _mistyped(param: str, expected: str) -> BadRequest:
    return field_error("request.type", param, expected=expected)
