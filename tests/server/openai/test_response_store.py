from __future__ import annotations

import pytest

from omlx.errors import BadRequest, NotFound
from omlx.server.dialects.openai.responses_items import Item
from omlx.server.dialects.openai.responses_store import ResponseStore
from omlx.server.http.transport import Json
from omlx.server.journal.journal import Owned
from tests.server.dialects import user

OWNER = "laptop"
ASKED = user("a")


def response(number: int, text: str = "b") -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": [part]}
    return {"id": f"resp_{number}", "output": [item]}


def owned(id: str) -> Owned:
    return Owned(OWNER, id)


def reference(id: str) -> Item:
    return Item(type="item_reference", id=id)


def test_a_conversation_goes_on_from_what_was_said() -> None:
    store = ResponseStore()
    store.keep(OWNER, response(1), [], ASKED)
    assert store.before(owned("resp_1")) == [*ASKED, {"role": "assistant", "content": "b"}]
    assert user("a") == ASKED


def test_what_is_given_out_is_a_copy_whatever_its_characters() -> None:
    store = ResponseStore()
    text = "한\ud800\u0000\U0001f600"
    store.keep(OWNER, response(1, text), [], ASKED)
    store.before(owned("resp_1")).clear()
    store.get(owned("resp_1"))["output"].clear()
    assert store.before(owned("resp_1"))[-1]["content"] == text
    assert store.get(owned("resp_1")) == response(1, text)


def test_an_image_is_stored_once_and_given_back() -> None:
    uri = "data:;base64," + "A" * 3000
    shown = {"type": "image", "url": uri, "detail": None, "kind": "input_image", "field": "x"}
    asked = [{"role": "user", "content": [{"type": "text", "text": "data:"}, shown]}]
    item = {"id": "in_0", "content": [{"type": "input_image", "image_url": uri}]}
    store = ResponseStore(max_bytes=9000)
    for number in range(5):
        store.keep(OWNER, response(number), [item], asked)
    assert len(store) == 5
    assert store.before(owned("resp_0"))[0] == asked[0]
    assert store.items(owned("resp_4")) == [item]
    for number in range(5):
        assert store._images.nbytes == len(uri)
        store.delete(owned(f"resp_{number}"))
    assert store._images.nbytes == 0
    store.keep(OWNER, response(6), [item | {"content": uri + "\ud800"}], asked)
    store.keep(OWNER, response(7), [{"id": "in_1", "image_url": f"{uri}\ud800"}], asked)
    assert store.items(owned("resp_7"))[0]["image_url"] == f"{uri}\ud800"
    store.keep(OWNER, response(8), [{"id": "in_2", "image_url": uri + "A" * 9000}], asked)
    assert len(store) == 0


def test_the_oldest_go_first_and_what_is_used_stays() -> None:
    store = ResponseStore(max_responses=3)
    for number in range(3):
        store.keep(OWNER, response(number), [], ASKED)
    store.before(owned("resp_0"))
    store.keep(OWNER, response(3), [], ASKED)
    assert store.get(owned("resp_0"))["id"] == "resp_0"
    with pytest.raises(BadRequest):
        store.before(owned("resp_1"))


def test_bytes_are_bounded() -> None:
    store = ResponseStore(max_bytes=5000)
    for number in range(20):
        store.keep(OWNER, response(number, "x" * 500), [], ASKED)
    assert 1 <= len(store) <= 4
    store.delete(owned("resp_19"))
    store.keep(OWNER, response(20, "x" * 9000), [], ASKED)
    assert len(store) == 0
    with pytest.raises(NotFound):
        store.get(owned("resp_20"))


def test_an_item_is_there_as_long_as_any_response_has_it() -> None:
    store = ResponseStore()
    asked: Json = {"id": "in_0", "type": "message", "role": "user", "content": "a"}
    for number in range(3):
        store.keep(OWNER, response(number), [asked, asked], ASKED)
    for number in (2, 0):
        store.delete(owned(f"resp_{number}"))
        assert store.resolved(OWNER, [reference("in_0")])[0].content == "a"
    store.delete(owned("resp_1"))
    with pytest.raises(BadRequest):
        store.resolved(OWNER, [reference("in_0")])


def test_references_stand_for_items_as_long_as_a_response_has_them() -> None:
    store = ResponseStore(max_responses=2)
    asked: Json = {"id": "in_0", "type": "message", "role": "user", "content": "a"}
    store.keep(OWNER, response(0), [asked], ASKED)
    new = Item(role="user", content="c")
    found = store.resolved(OWNER, [reference("in_0"), reference("msg_0"), new])
    assert [item.as_output()["content"][0]["text"] for item in found] == ["a", "b", "c"]
    assert found[2] is new
    store.keep(OWNER, response(1), [item.as_output() for item in found[:2]], ASKED)
    store.delete(owned("resp_0"))
    store.keep(OWNER, response(2), [], ASKED)
    assert (
        len(store.resolved(OWNER, [reference("in_0"), reference("msg_0"), reference("msg_1")])) == 3
    )
    store.keep(OWNER, response(3), [], ASKED)
    store.keep(OWNER, response(4), [], ASKED)
    for items in (
        [reference("in_0")],
        [reference("msg_2")],
        [reference("")],
        [reference("msg_4")] * 2,
    ):
        with pytest.raises(BadRequest) as caught:
            store.resolved(OWNER, [new, *items])
        assert caught.value.param == f"input[{len(items)}]"
