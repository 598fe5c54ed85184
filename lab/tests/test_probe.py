"""The probe: new results equal docs/model-support.md, and a fault in a cache is detected."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import KVCache

from lab.probe.__main__ import PAGE
from lab.probe.batching import life, uneven_rounds
from lab.probe.reference import TOLERANCE, Row, references
from lab.probe.report import examine
from lab.probe.rewinding import draft, shorten, verify
from tests import zoo

ROW_OF = {
    line.split(" | ")[0].lstrip("| "): line
    for line in PAGE.read_text(encoding="utf-8").splitlines()
}


class Forgetful(KVCache):
    """Cache that trims one token too few."""

    same_as = KVCache

    def trim(self, n: int) -> int:
        super().trim(n - 1)
        return n


def with_cache(model: nn.Module, cache: type[Any]) -> nn.Module:
    model.make_cache = lambda: [cache() for _ in model.layers]
    return model


@pytest.mark.parametrize("name", zoo.MAIN_NAMES)
def test_a_target_after_rollback_gives_the_logits_of_single_steps(name: str) -> None:
    result = verify(Row(zoo.build(name), 48, seed=3))
    assert result.gap <= TOLERANCE
    assert result.stepped + result.restored > 5


@pytest.mark.parametrize(
    "name", ["llama", "gemma3_text", "qwen3_next", "recurrent_gemma", "llama4"]
)
def test_a_draft_model_and_a_stored_conversation_after_rollback_give_the_logits_of_an_empty_cache(
    name: str,
) -> None:
    rows = references(zoo.build(name))
    assert draft(rows[0]).gap <= TOLERANCE
    assert shorten(rows, tries=8).gap <= TOLERANCE


def test_rows_of_a_batch_give_the_logits_of_each_alone() -> None:
    rows = references(zoo.build("recurrent_gemma"))
    assert life(rows) <= TOLERANCE


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_rows_that_draft_in_a_batch_give_the_logits_of_each_alone(name: str) -> None:
    assert uneven_rounds(references(zoo.build(name))) <= TOLERANCE


def test_the_probe_detects_rejected_tokens_that_stay() -> None:
    rows = references(zoo.build("llama"))
    assert uneven_rounds(rows, rolls=False) > TOLERANCE


def test_the_probe_detects_a_wrong_trim_and_a_wrong_position() -> None:
    model = zoo.build("llama")
    row = Row(model, 40, seed=0)
    late = make_late(zoo.make_cache(model))
    assert row.read(0, 5, late) > TOLERANCE
    with pytest.raises(AssertionError):  # the cache's own count disagrees
        verify(Row(with_cache(zoo.build("llama"), Forgetful), 40, seed=0))


def make_late(cache: list[Any]) -> list[Any]:
    """Cache with empty rows before the first token."""
    for layer in cache:
        layer.update_and_fetch(mx.zeros((1, 2, 1, 16)), mx.zeros((1, 2, 1, 16)))
    return cache


@pytest.mark.slow
@pytest.mark.parametrize("name", [*zoo.FAMILIES, *zoo.BORROWED_NAMES])
def test_the_page_equals_the_probe(name: str) -> None:
    assert examine(name).line == ROW_OF[name]


def test_the_page_has_every_architecture() -> None:
    assert {*zoo.FAMILIES, *zoo.BORROWED_NAMES} <= set(ROW_OF)
