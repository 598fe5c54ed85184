from __future__ import annotations

import json

import pytest

from omlx.server.request import tooling

DEEP = '{"a": ' * 600 + "1" + "}" * 600


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ('{"a": [1, "é"]}', {"a": [1, "é"]}),
        ("", {}),
        (" ", {}),
        ("[1]", "[1]"),
        ('{"a": 1', '{"a": 1'),
        (r'{"a": "\ud83d"}', r'{"a": "\ud83d"}'),
        (DEEP, DEEP),
    ],
)
def test_arguments_are_an_object_where_they_are_one_that_can_be_rendered(
    arguments: str, known: object
) -> None:
    assert tooling.call("c", "look", arguments)["function"] == {"name": "look", "arguments": known}


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ('{"a": 1, "b": "é"}', {"a": 1, "b": "é"}),
        (
            '{"a": [1e999, {"b": NaN}], "c": -Infinity, "d": 1.5}',
            {"a": [None, {"b": None}], "c": None, "d": 1.5},
        ),
        (r'{"a": "\ud83d x", "b": 1}', {"a": "\ufffd x", "b": 1}),
        (r'{"a": "\uDE00\ud83d"}', {"a": "\ufffd\ufffd"}),
        (r'{"a": "\ud83d\ude00 \\ud83d \n"}', {"a": "😀 \\ud83d \n"}),
        (r'{"a": "x\ud83d', {"a": "x\ufffd"}),
        ('{"a": "cut', {"a": "cut"}),
        ("", {}),
        (" ", {}),
        ("[1]", "[1]"),
        ("no", "no"),
        ("{'a': 1}", "{'a': 1}"),
        (DEEP, DEEP),
    ],
)
def test_arguments_of_a_model_arrive_as_json_that_can_be_sent(said: str, known: object) -> None:
    assert tooling.parse_arguments(said) == known
    json.dumps(tooling.parse_arguments(said), ensure_ascii=False, allow_nan=False).encode()
