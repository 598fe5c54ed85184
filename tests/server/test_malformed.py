"""Bodies of any shape are read or refused by name, and raise nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from omlx.errors import BadRequest
from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.completions_request import CompletionRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.request.fields import Body

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
