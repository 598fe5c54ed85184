"""Every call format with every way of writing a call, however the output is cut into pieces."""

from __future__ import annotations

import pytest

from omlx.text.calls.json_formats import HARMONY
from omlx.text.calls.markup import FAMILIES, PARSERS
from tests.text.call_matrix import (
    FORMATS,
    LOOK,
    WEATHER,
    Read,
    cases,
    other_writings,
    pieces_of,
    read,
    table,
    written,
)
from tests.text.call_writings import WRITINGS


def outcomes(family: str, text: str) -> list[Read]:
    return [read(FORMATS[family], pieces) for pieces in pieces_of(text)]


def test_every_format_is_in_the_matrix() -> None:
    known = [*FAMILIES, *PARSERS.values(), HARMONY]
    assert all(form in FORMATS.values() for form in known)
    assert WRITINGS.keys() <= FORMATS.keys()
    assert len(list(table())) == len(FORMATS) + 2


@pytest.mark.parametrize("family", FORMATS)
def test_every_case(family: str) -> None:
    for name, (text, expected) in cases(FORMATS[family]).items():
        assert outcomes(family, text) == [expected] * 3, name


@pytest.mark.parametrize("family", WRITINGS)
def test_other_writings(family: str) -> None:
    for text in other_writings(family):
        assert outcomes(family, text) == [("", [WEATHER])] * 3, text


@pytest.mark.parametrize("family", sorted(FORMATS.keys() - {"harmony"}))
def test_a_broken_header_loses_nothing(family: str) -> None:
    text = written(FORMATS[family], WEATHER)
    for at in range(0, text.index("Zürich"), 2):
        whole, *others = outcomes(family, text[:at] + text[at + 1 :])
        assert others == [whole] * 2
        assert "Zürich" in str(whole)


@pytest.mark.parametrize("family", [key for key, form in FORMATS.items() if form.end])
def test_markers_that_are_written_twice(family: str) -> None:
    form = FORMATS[family]
    start = form.start if form.marked and family != "harmony" else ""
    text = f"{start}\n{written(form, WEATHER)}\n{form.end} A"
    assert outcomes(family, text) == [("A", [WEATHER])] * 3


def test_a_marker_that_is_written_twice_may_be_prose() -> None:
    for text in ("<tool_call> <tool_call> so", "<tool_call><tool_call>", "<tool_call> <tool"):
        assert outcomes("json_tools", text) == [(text, [])] * 3


@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_arguments_that_are_null_are_none(key: str) -> None:
    text = f'<tool_call>\n{{"name": "look", "{key}": null}}\n</tool_call>'
    assert outcomes("json_tools", text) == [("", [LOOK])] * 3


@pytest.mark.parametrize("family", sorted(FORMATS.keys() - {"harmony"}))
def test_a_text_behind_a_call_is_no_call(family: str) -> None:
    text = written(FORMATS[family], WEATHER)
    for said in ('So {"a": 1}', 'Then\n{"a": 1}', "f(a=1)", "look: {}"):
        assert outcomes(family, f"{text}\n{said}") == [(said, [WEATHER])] * 3
