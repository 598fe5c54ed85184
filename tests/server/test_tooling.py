from __future__ import annotations

import pytest

from omlx.server import tooling

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
def test_arguments_are_an_object_where_they_are_one_that_can_be_rendered(arguments: str, known: object) -> None:
    assert tooling.call("c", "look", arguments)["function"] == {"name": "look", "arguments": known}
