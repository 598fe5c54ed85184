"""Bodies of any shape: judged before they are parsed, what is wrong with them in our sentences."""

from __future__ import annotations

import asyncio
import importlib
import json
import pkgutil
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Message

import omlx.admin
import omlx.server
from omlx.catalog import catalog, languages, sentence
from omlx.errors import BadRequest
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.completions_request import CompletionRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.http import transport
from omlx.server.http.errors import from_validation
from omlx.server.http.transport import LARGE_BYTES, LIMITS, check_finite, outside_strings, read_body
from omlx.server.request.dialect import named_event
from omlx.server.request.fields import Body
from omlx.server.request.structured_output import ANY_OBJECT, structured_output
from tests.server.dialects import user
from tests.server.running import TARGET

CHAT = "/v1/chat/completions"


def char_by_char(text: bytes) -> bytes:
    """`outside_strings` by its definition."""
    kept, in_string, escaped = bytearray(), False, False
    for char in text:
        if not in_string and char not in b'" \t\r\n':
            kept.append(char)
        if escaped:
            escaped = False
        elif in_string and char == ord("\\"):
            escaped = True
        elif char == ord('"'):
            in_string = not in_string
    return bytes(kept)


@pytest.mark.parametrize("seed", range(20))
def test_strings_are_left_out_wherever_slices_end(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    for _ in range(100):
        strings = [random.choices('a"\\\n{,:é', k=random.randrange(8)) for _ in range(6)]
        text = json.dumps({"".join(string): ["".join(string), 1, {}] for string in strings})
        monkeypatch.setattr(transport, "_SLICE_BYTES", random.choice((1, 2, 3, 7, 1000)))
        assert outside_strings(text.encode()) == char_by_char(text.encode())


@pytest.mark.parametrize(
    "number",
    [
        *("1e308", "1e309", "-1E+400", "1.5e3000", "0e999", "1e-999", "12e3", "0.000001e310"),
        *("1" * 400, "1" * 400 + ".0", "1" * 308 + ".5"),
        *("NaN", "-Infinity", '"NaN 1e400"', "true"),
    ],
)
def test_the_numbers_that_json_cannot_repeat_are_refused(number: str) -> None:
    text = f'{{"a": [{number}, 1]}}'
    try:
        json.dumps(from_json(text), allow_nan=False)
    except ValueError:
        with pytest.raises(BadRequest):
            check_finite(outside_strings(text.encode()))
    else:
        check_finite(outside_strings(text.encode()))


@pytest.mark.parametrize(
    ("mark", "unit", "code"), [(b"{", '{"a":1}', "request.objects"), (b",", "1", "request.values")]
)
def test_a_body_with_too_many_values_is_refused_before_it_is_parsed(
    http: httpx.Client, mark: bytes, unit: str, code: str
) -> None:
    units = ",".join([unit] * (LIMITS[mark] + 2))
    # It is no JSON, so a parser that saw it would say so.
    answer = http.post(CHAT, content=f'{{"model": "{TARGET}", "messages": [{units}')
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_too_many_fields_are_refused() -> None:
    fields = ",".join(['"a":1'] * (LIMITS[b":"] + 1))
    with pytest.raises(BadRequest, match="fields"):
        outside_strings(f"{{{fields}}}".encode())


def test_text_is_not_counted(http: httpx.Client) -> None:
    text = "{},:" * LIMITS[b":"]
    content = {"model": TARGET, "messages": user(text)}
    error = http.post(CHAT, json=content).json()["error"]
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize(("size", "on_loop"), [(100, True), (LARGE_BYTES, False)])
def test_a_large_body_is_parsed_off_the_event_loop(size: int, on_loop: bool) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b" " * size}

    async def parsed_here() -> bool:
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        thread = await read_body(request, lambda _: threading.get_ident())
        return thread == threading.get_ident()

    assert asyncio.run(parsed_here()) is on_loop


ENDS_OF_LINES = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def test_a_frame_is_one_line_however_it_is_split() -> None:
    said = {"type": "x", "text": f"é{ENDS_OF_LINES}日本😀"}
    name, line, end = named_event(said).decode().splitlines()
    assert (name, json.loads(line.removeprefix("data: ")), end) == ("event: x", said, "")


LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
)
NAMES = st.sampled_from(
    "type role content text name id function arguments input tool_calls tool_call_id tool_use_id "
    "call_id output tool_use tool_result thinking user assistant system tool function_call message "
    "parameters".split()
)
ANY = st.recursive(
    LEAF | NAMES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=20,
)


MANY = 100
WRONG = [
    (ChatRequest, {"messages": [{}] * MANY}),
    (ChatRequest, {"messages": [{"role": "user", "content": [1] * MANY}]}),
    (CompletionRequest, {"prompt": [{}] * MANY}),
    (MessageRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
    (ResponseRequest, {"input": [1] * MANY}),
]


@pytest.mark.parametrize(("kind", "body"), WRONG)
def test_a_list_is_read_to_its_first_mistake(kind: type[Body], body: object) -> None:
    """A body has room for millions of them."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(body))
    assert caught.value.error_count() < MANY / 10


def read_chat(body: bytes) -> object:
    return ChatRequest.parse(body).generation_request()


def read_completion(body: bytes) -> object:
    return CompletionRequest.parse(body).generation_request()


def read_message(body: bytes) -> object:
    return MessageRequest.parse(body).exchange()


def read_response(body: bytes) -> object:
    parsed = ResponseRequest.parse(body)
    return parsed.generation_request(parsed.conversation(()))


FIELDS = (
    "model stream n stop max_tokens tools tool_choice system thinking instructions "
    "previous_response_id reasoning text response_format output_config temperature seed logit_bias "
    "suffix echo logprobs include store background metadata"
).split()


@pytest.mark.parametrize(
    ("read", "main"),
    [
        (read_chat, "messages"),
        (read_completion, "prompt"),
        (read_message, "messages"),
        (read_response, "input"),
    ],
)
@given(data=st.data())
def test_any_body_is_read_or_refused(
    read: Callable[[bytes], object], main: str, data: st.DataObject
) -> None:
    fields: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=4))
    roles = st.fixed_dictionaries({"role": NAMES, "content": ANY}) | st.dictionaries(
        NAMES, ANY, max_size=6
    )
    fields[main] = data.draw(ANY | st.lists(roles, min_size=1, max_size=4))
    try:
        read(json.dumps(fields).encode())
        refused = None
    except BadRequest as error:
        refused = error
    assert refused is None or not refused.message.startswith(refused.code), (
        "no sentence for this code"
    )


WRONG_VALUES = [
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
            for value in WRONG_VALUES:
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
        ChatRequest.parse(sent)
    assert caught.value.message == told


@pytest.mark.parametrize("more", [{}, {"schema": None}, {"schema": ""}])
def test_an_object_without_a_schema_is_any_object(more: dict[str, object]) -> None:
    form = structured_output({"type": "json_object", **more}, "response_format")
    assert form is not None
    assert json.loads(form.text) == ANY_OBJECT
