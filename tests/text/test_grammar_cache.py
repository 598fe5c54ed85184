from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest

from omlx.errors import BadRequest
from omlx.text.grammar import CACHE_SIZE, GrammarCache


def test_each_source_is_compiled_once_and_the_oldest_is_evicted() -> None:
    cache, compiled = GrammarCache[str](), []

    def compile(source: str) -> str:
        compiled.append(source)
        return source.upper()

    for source in ("a", "b", "a"):
        assert cache.get(source, partial(compile, source)) == source.upper()
    assert compiled == ["a", "b"]
    for number in range(CACHE_SIZE - 1):
        cache.get(f"other {number}", str)
    cache.get("a", lambda: compile("a"))
    cache.get("b", lambda: compile("b"))
    assert compiled == ["a", "b", "b"]


def test_a_refusal_is_cached() -> None:
    cache, tried = GrammarCache[str](), []

    def refuse() -> str:
        tried.append(1)
        raise BadRequest("format.invalid", param="x", field="x", detail="too large")

    for _ in range(3):
        with pytest.raises(BadRequest) as caught:
            cache.get("a", refuse)
        assert (caught.value.code, caught.value.params["detail"]) == ("format.invalid", "too large")
    assert len(tried) == 1


class Matcher:
    """Stands for megabytes of a compiled grammar."""


def test_a_cached_refusal_holds_nothing_that_was_compiled() -> None:
    cache, matchers = GrammarCache[str](), []

    def compile() -> str:
        matcher = Matcher()
        matchers.append(weakref.ref(matcher))
        try:
            raise ValueError("nothing has this form")
        except ValueError as error:
            raise BadRequest(
                "format.invalid", param="guided_choice", field="guided_choice"
            ) from error

    for _ in range(2):
        with pytest.raises(BadRequest):
            cache.get("a", compile)
    gc.collect()
    (matcher,) = matchers
    assert matcher() is None
