"""Kept answers on disk: bounds, and names that are no ids."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from omlx.engine.types import FinishReason, Sampling
from omlx.errors import NotFound
from omlx.models.catalog.facts import ModelIdentity
from omlx.receipts.kept import MAX_AGE_S, AnswerStore, KeptAnswer
from omlx.text.constraint import Constraint
from omlx.text.grammar import GrammarKind, StructuredOutput
from omlx.text.output import OutputSpec
from omlx.text.tools import ToolUse
from tests.storage import homes


def answer(id: str, tokens: int = 3) -> KeptAnswer:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    use = ToolUse((tool,), forced=True, strict=frozenset({"add", "subtract"}))
    form = StructuredOutput(GrammarKind.JSON, "{}", "f")
    return KeptAnswer(
        id=id,
        model="m",
        at=1.5,
        identity=ModelIdentity("w", "k", "t", "auto"),
        versions={"omlx": "1"},
        prompt=(1, 2),
        answer=tuple(range(tokens)),
        sampling=Sampling(temperature=0.5, logit_bias=((4, 1.5),), seed=2**53 - 1, end_ids=(2,)),
        limit=8,
        spec=OutputSpec(stop_ids=frozenset({7, 3, 90}), stops=("x",), tools=(tool,), single=True),
        constraint=Constraint(output=form, tools=use, thinking=True),
        finish=FinishReason.STOP,
    )


def keep(store: AnswerStore, kept: KeptAnswer) -> None:
    store.keep(kept, kept.receipt())


def test_an_answer_comes_back_as_it_was(tmp_path: Path) -> None:
    store, kept = AnswerStore(tmp_path / "home"), answer("a-0")
    keep(store, kept)
    assert store.get("a-0") == (kept, kept.receipt())
    assert store.get("a-0")[0].receipt() == kept.receipt()


def test_the_choices_of_an_answer_are_found_in_order(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    for number in (0, 1, 2, 10):
        keep(store, answer(f"a-{number}"))
    keep(store, answer("ab-0"))
    assert store.ids("a") == ["a-0", "a-1", "a-2", "a-10"]
    assert store.ids("a-1") == ["a-1"]
    assert store.ids("c") == store.ids("../a") == store.ids("*") == []


@pytest.mark.parametrize("id", ["b", "../a-0", "", "a" * 200, "a-0.json"])
def test_what_is_no_id_of_an_answer_is_not_found(tmp_path: Path, id: str) -> None:
    keep(AnswerStore(tmp_path / "sub"), answer("a-0"))
    with pytest.raises(NotFound):
        AnswerStore(tmp_path / "sub").get(id)


def aged(home: Path, id: str, seconds: float) -> None:
    homes.rows(home, "update receipts set at = ? where id = ?", time.time() - seconds, id)


def test_the_oldest_go_first_beyond_a_number(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, max_answers=2)
    for number in range(4):
        keep(store, answer(f"a-{number}"))
        aged(tmp_path, f"a-{number}", 100 - number)
    store.sweep()
    assert store.ids("a") == ["a-2", "a-3"]


def test_bytes_are_bounded(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, max_bytes=20_000)
    for number, tokens in enumerate((3000, 1000)):
        keep(store, answer(f"a-{number}", tokens))
        aged(tmp_path, f"a-{number}", 10 - number)
    store.sweep()
    assert store.ids("a") == ["a-1"]


def test_old_answers_expire(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    for id in ("a-0", "a-1"):
        keep(store, answer(id))
    aged(tmp_path, "a-0", MAX_AGE_S + 60)
    store.sweep()
    assert store.ids("a") == ["a-1"]


def test_a_server_that_keeps_on_writing_stays_within_the_bounds(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path, max_answers=10)
    for number in range(140):
        keep(store, answer(f"a-{number}"))
    assert len(store.ids("a")) <= 10 + 64
