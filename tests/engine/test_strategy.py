"""Strategy strings: what they mean, and where they are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import AUTO, DRAFT, NGRAM, OFF, Clause, Strategy, parse
from omlx.errors import BadRequest
from tests.refusals import refused

EIGHT = Clause("ngram", draft_length=DraftLength(max=8))
CHAIN = Strategy(
    (Clause("ngram", 4, DraftLength(max=32)), Clause("draft", draft_length=DraftLength(max=8)))
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("auto", AUTO),
        ("off", OFF),
        ("draft", DRAFT),
        (" ngram ", NGRAM),
        ("ngram:n=4,m=32;draft:m=8", CHAIN),
        (
            "draft : min = 2 , m = 2 ; ngram",
            Strategy((Clause("draft", None, DraftLength(2, max=2)), Clause("ngram"))),
        ),
        ("auto:m=64,min=1,n=3", Strategy((Clause("auto", 3, DraftLength(1, max=64)),))),
    ],
)
def test_what_is_meant_and_how_it_is_written(text: str, meant: Strategy) -> None:
    assert parse(text) == meant
    assert parse(str(meant)) == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ngram-simple", "ngram"),
        ("ngram-cache", "ngram"),
        ("draftless", "ngram"),
        ("eagle3", "eagle"),
        ("dflash", "block"),
        ("dspark", "block"),
    ],
)
def test_names_of_others_are_read_and_noted(name: str, meant: str) -> None:
    found = parse(f"{name}:m=8")
    assert (str(found), found.clauses) == (f"{meant}:m=8", (replace(EIGHT, name=meant),))
    assert [(note.code, note.params["name"]) for note in found.notes] == [
        ("strategy.read_as", name)
    ]


@pytest.mark.parametrize(
    ("text", "code", "at"),
    [
        ("", "name", ""),
        ("fast", "name", "fast"),
        ("Auto", "name", "Auto"),
        ("ngram;", "name", ""),
        ("ngram;;draft", "name", ";draft"),
        ("ngram; drft:m=2", "name", "drft"),
        ("ngram-simple;drft", "name", "drft"),
        ("ngram,draft", "name", "ngram,"),
        ("eagle;eagle3", "twice", "eagle3"),
        ("medusa:m=3", "refused", "medusa"),
        ("mtp:n=3", "key", "n"),
        ("block:n=3", "key", "n"),
        ("draft;draft", "twice", "draft"),
        ("draft;ngram;ngram-cache", "twice", "ngram-cache"),
        ("ngram:m=4,m=4", "twice", "m=4"),
        ("ngram;off", "alone", "off"),
        ("auto;draft", "alone", "draft"),
        ("ngram:", "key", ""),
        ("ngram:m=4,", "key", ""),
        ("ngram:m=4, x=1", "key", "x"),
        ("draft:n=4", "key", "n="),
        ("off:m=4", "key", "m="),
        ("ngram:m", "number", "m"),
        ("ngram:m=", "number", "m="),
        ("ngram:n=4,m=-1", "number", "m=-"),
        ("ngram:m=1.5", "number", "m=1"),
        ("ngram:m=²", "number", "m="),
        ("ngram:m=0", "range", "m="),
        ("ngram:n=2", "range", "n="),
        ("ngram; draft:m=65", "range", "m="),
        pytest.param("ngram:m=" + "9" * 5000, "range", "m=", id="many digits"),
        ("draft:min=9, m=4", "min_above_max", "m=4"),
        ("draft:m=4,min=9;ngram", "min_above_max", "min=9"),
    ],
)
def test_a_mistake_is_named_with_its_column(text: str, code: str, at: str) -> None:
    column = (text.rindex(at) if at else len(text)) + 1
    with refused(BadRequest, f"strategy.{code}", f"Column {column}:", column=column) as caught:
        parse(text, "draft_strategy")
    assert caught.value.param == "draft_strategy"


def test_draft_means_the_draft_that_is_set() -> None:
    chain = parse("ngram:n=4;draft:m=8")
    assert chain.with_draft_as("draft") is chain
    meant = chain.with_draft_as("eagle")
    assert str(meant) == "ngram:n=4;eagle:m=8"
    assert [note.params for note in meant.notes] == [{"name": "draft", "meant": "eagle"}]
    for text in ("auto", "off", "ngram", "draft;eagle:m=2"):
        assert parse(text).with_draft_as("eagle") == parse(text)


def test_what_is_left_of_a_strategy() -> None:
    chain = parse("ngram:n=4;draft:m=8")
    assert str(chain.among({"ngram", "draft"})) == "ngram:n=4;draft:m=8"
    assert str(chain.among({"ngram"})) == "ngram:n=4"
    assert str(chain.among(set())) == str(AUTO.among(set())) == "off"
    assert str(AUTO.among({"ngram"})) == "auto"
