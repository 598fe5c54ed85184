from __future__ import annotations

import pytest

from omlx.errors import BadRequest, NotFound
from omlx.server.dialect import Json
from omlx.server.openai.response_store import ResponseStore

ASKED = [{"role": "user", "content": "a"}]


def response(number: int, text: str = "b") -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"id": f"resp_{number}", "output": [{"type": "message", "role": "assistant", "content": [part]}]}


def test_a_conversation_goes_on_from_what_was_said() -> None:
    store = ResponseStore()
    store.keep(response(1), [], ASKED)
    assert store.before("resp_1") == [*ASKED, {"role": "assistant", "content": "b"}]
    assert store.before(None) == []
    assert ASKED == [{"role": "user", "content": "a"}]


def test_what_is_given_out_is_a_copy_whatever_its_characters() -> None:
    store = ResponseStore()
    text = "한\ud800\u0000\U0001f600"
    store.keep(response(1, text), [], ASKED)
    store.before("resp_1").clear()
    store.get("resp_1")["output"].clear()
    assert store.before("resp_1")[-1]["content"] == text
    assert store.get("resp_1") == response(1, text)


def test_the_oldest_go_first_and_what_is_used_stays() -> None:
    store = ResponseStore(max_responses=3)
    for number in range(3):
        store.keep(response(number), [], ASKED)
    store.before("resp_0")
    store.keep(response(3), [], ASKED)
    assert store.get("resp_0")["id"] == "resp_0"
    with pytest.raises(BadRequest):
        store.before("resp_1")


def test_bytes_are_bounded() -> None:
    store = ResponseStore(max_bytes=5000)
    for number in range(20):
        store.keep(response(number, "x" * 500), [], ASKED)
    assert 1 <= len(store) <= 4
    store.delete("resp_19")
    store.keep(response(20, "x" * 9000), [], ASKED)
    assert len(store) == 0
    with pytest.raises(NotFound):
        store.get("resp_20")
