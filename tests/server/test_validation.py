"""No error of a field has the words of the library that found it, in any request."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

import omlx.admin
import omlx.server
from omlx.catalog import catalog, languages, sentence
from omlx.errors import BadRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.http.errors import from_validation
from omlx.server.request.fields import read
from omlx.server.request.structured_output import ANY_OBJECT, structured_output
from tests.server.dialects import user

WRONG = [
    *(None, True, 5, -(2**70), 2**70, 1.5, -1e300, "", "x", "x" * 5000, [], [5], [None], {}),
    *(["x"] * 5000, {"x": None}, {"type": 5}, {"type": "x"}, [{"type": "x"}], [{"role": "x"}]),
    *(user(5), [{"function": {"name": 5}}]),
]


def requests(parent: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    for kind in parent.__subclasses__():
        if kind.__module__.startswith(("omlx.server.", "omlx.admin.", "admin.")):
            yield kind
        yield from requests(kind)


def all_requests() -> list[type[BaseModel]]:
    for package in (omlx.server, omlx.admin):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return sorted(set(requests()), key=lambda kind: kind.__qualname__)


def test_every_wrong_value_has_a_sentence_of_ours_in_every_language() -> None:
    codes = set()
    for kind in all_requests():
        for field in kind.model_fields:
            for value in WRONG:
                try:
                    kind.model_validate({field: value})
                except ValidationError as error:
                    details = [one for one in error.errors() if one["loc"][0] == field]
                    if not details:
                        continue
                    told = from_validation(
                        ValidationError.from_exception_data(error.title, details)
                    )
                    codes.add(told.code)
                    check(told, [one["msg"] for one in details])
    ours = {"request.empty", "request.range", "request.type", "request.value", "request.invalid"}
    assert codes == ours | {"request.missing"}


def check(error: BadRequest, wordings: list[str]) -> None:
    for language in languages():
        assert error.code in catalog(language)
        told = sentence(error.code, error.params, language)
        assert not any(wording in told for wording in [*wordings, "Input", "should"]), told
    assert str(error.params["field"]) in error.message


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"temperature": 101}, "temperature must be a number ≤ 100."),
        ({"seed": 2**64}, "seed must be a number < 18446744073709551616."),
        ({"stop": 5}, "stop must have this JSON type: string | array."),
        ({"stop": ["a"] * 65}, "stop does not meet this rule: length ≤ 64."),
        ({"tool_choice": "x"}, "tool_choice must be one of: 'none', 'auto', 'required', 'any'."),
        ({"messages": []}, "messages must not be empty."),
        ([], "body must have this JSON type: object."),
        (None, "The request body is not valid JSON: line 1 column 2."),
    ],
)
def test_what_is_expected_is_told(body: object, told: str) -> None:
    hello = {"messages": user("hi")}
    if isinstance(body, dict):
        body = hello | body
    sent = b"{x" if body is None else json.dumps(body).encode()
    with pytest.raises(BadRequest) as caught:
        read(ChatRequest, sent)
    assert caught.value.message == told


@pytest.mark.parametrize("more", [{}, {"schema": None}, {"schema": ""}])
def test_an_object_without_a_schema_is_any_object(more: dict[str, object]) -> None:
    form = structured_output({"type": "json_object", **more}, "response_format")
    assert form is not None
    assert json.loads(form.text) == ANY_OBJECT
