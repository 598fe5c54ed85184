"""Repair of JSON in pieces: valid JSON passes unchanged, and all else becomes JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from omlx.text.calls.repair import JsonRepair
from tests.text.test_stream_parsers import JSON

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def repair(pieces: Iterable[str], terminator: str = "") -> tuple[str, str | None]:
    """Return the repaired text, and the text after its end; None if it has not ended."""
    filter_ = JsonRepair(terminator)
    passed, rest = "", ""
    for piece in pieces:
        if filter_.ended:
            rest += piece
        else:
            passed += filter_.feed(piece)
            rest = filter_.rest
    return passed, rest if filter_.ended else None


@given(
    value=st.dictionaries(st.text(), VALUES) | st.lists(VALUES),
    ascii=st.booleans(),
    indent=st.none() | st.integers(0, 2),
)
def test_valid_json_passes_unchanged(value: Any, ascii: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    assert repair([text + '} "']) == (text, '} "')
    assert repair(text) == (text, "")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "x\ny\tz\x00"}', {"a": "x\ny\tz\0"}),
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2 , ] , }', {"a": [1, 2]}),
        ('{"a": True, "b": None, "c": NaN, "d": -Infinity}', {**dict.fromkeys("bcd"), "a": True}),
        ("{'a': 'it\\'s \"so\"'}", {"a": 'it\'s "so"'}),
        ('{"a": "it\'s"}', {"a": "it's"}),
        ("{a: b, c: 05, d: .5, e: +3}", {"a": "b", "c": 5, "d": 0.5, "e": 3}),
        (r'{"a": "\d \ud83d\ude00 \ud83d \ude00 \u12"}', {"a": "\\d 😀 \ufffd \ufffd \\u12"}),
        ('{"a" "b", "c":, "d"}', {"a": "b", "c": None, "d": None}),
        ('{"a": [1 2}', None),
        ('{"a": {"b": 1]}', {"a": {"b": 1}}),
        ('{"a":: 1,, "b": 2}', {"a": 1, "b": 2}),
        ('[{"a": 1} {"a": 2}]', [{"a": 1}, {"a": 2}]),
    ],
)
def test_slips_are_repaired(text: str, value: Any) -> None:
    passed, rest = repair([text])
    assert (passed, rest) == repair(text)
    if value is not None:
        assert (json.loads(passed), rest) == (value, "")
    else:
        assert rest is None


def test_a_terminator_ends_what_was_left_open() -> None:
    for text in ('{"a": [{"b": "x</t>"', '{"a": [{"b": "x</t>"}'):
        for pieces in ([f"{text}</t>."], f"{text}</t>."):
            assert repair(pieces, "</t>") == ('{"a": [{"b": "x</t>"}]}', "</t>.")


@given(parts=st.lists(st.sampled_from(JSON), max_size=30))
def test_whatever_ends_is_json(parts: list[str]) -> None:
    text = "{" + "".join(parts)
    passed, rest = repair([text], "</t>")
    if rest is not None:
        assert isinstance(json.loads(passed), dict)
        json.loads(passed).__repr__().encode()


@given(value=st.dictionaries(st.text(), VALUES), cut=st.integers(0, 400))
def test_what_is_cut_off_is_the_beginning_of_json(value: dict[str, Any], cut: int) -> None:
    text = json.dumps(value)[:cut]
    if text and cut < len(json.dumps(value)):
        filter_ = JsonRepair()
        passed = filter_.feed(text) + filter_.finish()
        assert text.startswith(passed)
        assert isinstance(from_json(passed, allow_partial="trailing-strings"), dict)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('{"a": "b"', '{"a": "b"}'),
        ('{"a": [1, {"b": null', '{"a": [1, {"b": null}]}'),
        ('{"a": 12', '{"a": 12}'),
        ('{"a": [', '{"a": []}'),
        ('{"a": 1,', '{"a": 1}'),
        ("{", "{}"),
        ('{"a": "b', None),
        ('{"a":', None),
        ('{"a": 1, "b"', None),
    ],
)
def test_brackets_are_added_where_nothing_else_is_missing(text: str, whole: str | None) -> None:
    filter_ = JsonRepair("</t>")
    passed = filter_.feed(text) + filter_.finish(complete=True)
    assert filter_.ended == (whole is not None)
    if whole is None:
        assert text.startswith(passed)
    else:
        assert json.loads(passed) == json.loads(whole)


def test_a_number_before_the_terminator_is_a_number() -> None:
    for pieces in (['{"a": 3</t:u>'], list('{"a": 3</t:u>')):
        assert repair(pieces, "</t:u>") == ('{"a": 3}', "</t:u>")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('{"a": "b" "c": {"d": 1}}', {"a": "b", "c": {"d": 1}}),
        ('{a": "b", c" : 1}', {"a": "b", "c": 1}),
    ],
)
def test_forgotten_commas_and_quotes(text: str, meant: object) -> None:
    for pieces in ([text], list(text)):
        assert json.loads(repair(pieces)[0]) == meant
