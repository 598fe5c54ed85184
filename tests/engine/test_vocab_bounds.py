"""Ids that a tokenizer has and a model has not never reach an array: mlx checks no bounds."""

from __future__ import annotations

import os
import subprocess
import sys
from ctypes.util import find_library
from dataclasses import replace
from itertools import product

import pytest

from omlx.engine.build import build_loop
from omlx.engine.device.model import cache_maker, id_limit
from omlx.engine.loop import EngineLoop
from omlx.engine.step.masking import KnownTokensMask, allows, with_ids
from omlx.engine.types import Sampling, Speculation
from omlx.errors import BadRequest
from tests import zoo
from tests.engine.harness import (
    GREEDY,
    LIMITS,
    WARM,
    Bench,
    loop_of,
    model,
    padded,
    prompt,
    request,
    unassisted,
)
from tests.engine.masks import Ruled, only_even
from tests.lanes import few
from tests.refusals import refused

FAMILIES = few(sorted(zoo.FAMILIES), "llama", "gemma3", "mamba2", "qwen3_next")
"""Every architecture; one of each kind of cache by default."""
MISSING = zoo.VOCAB_SIZE
"""The first id that the tokenizer has and the models here have not."""

PENALISED = Sampling(temperature=0.8, seed=3, repetition_penalty=1.3, frequency_penalty=0.2)


def narrow_loop(name: str) -> EngineLoop:
    """A loop over a model whose tokenizer has eight ids more."""
    return build_loop(model(name), zoo.VOCAB_SIZE + 8, LIMITS)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_architecture_is_as_wide_as_its_configuration_says(name: str) -> None:
    narrow = model(name)
    assert id_limit(narrow, cache_maker(narrow)) == zoo.VOCAB_SIZE


@pytest.mark.parametrize("name", FAMILIES)
def test_an_id_that_the_model_lacks_is_refused_wherever_it_stands(name: str) -> None:
    loop = narrow_loop(name)
    biased = replace(GREEDY, logit_bias=((MISSING, 100.0),))
    requests = [
        ("messages", request(tokens=(1, MISSING, 2))),
        ("messages", request(tokens=(*[MISSING] * 5, 1), sampling=PENALISED)),
        ("prediction", request(speculation=Speculation(prediction=(1, MISSING)))),
        ("logit_bias", request(sampling=biased)),
    ]
    for param, asked in requests:
        with refused(BadRequest, "engine.token_id", size=zoo.VOCAB_SIZE) as refusal:
            loop.submit(asked)
        assert refusal.value.param == param
    assert not loop.has_work


class Missing:
    """A `TokenMask` that allows `before` tokens of any kind, then only one that the model lacks."""

    ended = False
    free = 0

    def __init__(self, before: int) -> None:
        self._left = before

    def bits(self) -> bytes | None:
        return None if self._left > 0 else with_ids(bytes(16), [MISSING + 1])

    def advance(self, token: int) -> bool:
        if self._left <= 0 and token != MISSING + 1:
            return False
        self._left -= 1
        return True

    def rollback(self, n: int) -> None:
        self._left += n


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("gemma3_text", 3),
        ("qwen3_next", 3),
        *few(((name, 0) for name in sorted(zoo.FAMILIES)), ("llama", 0)),
    ],
)
def test_a_grammar_that_allows_only_missing_ids_is_a_bad_request(name: str, before: int) -> None:
    """Two rows: one drafts what the grammar forces, the other does not."""
    bench = Bench(narrow_loop(name))
    speculated = request("a", speculation=Speculation(), mask=Missing(before))
    plain = unassisted(request("b", mask=Missing(before)))
    free = unassisted(request("c", max_tokens=6))
    bench.run(speculated, plain, free)
    errors = {name: failed.error for name, failed in bench.failed.items()}
    assert {name: error.code for name, error in errors.items()} == {
        "a": "format.missing_tokens",
        "b": "format.missing_tokens",
    }
    assert {type(error) for error in errors.values()} == {BadRequest}
    assert len(bench.tokens["a"]) == len(bench.tokens["b"]) == before
    assert len(bench.tokens["c"]) == 6


def test_a_grammar_loses_only_the_ids_that_the_model_lacks() -> None:
    mask = KnownTokensMask(Ruled(only_even), MISSING - 3)
    plain = Ruled(only_even)
    known = plain.bits()
    assert known is not None
    allowed = [token for token in range(MISSING) if allows(mask.bits(), token)]
    assert allowed == [token for token in range(MISSING - 3) if allows(known, token)]
    assert not mask.advance(MISSING - 2)
    assert mask.advance(allowed[0])
    mask.rollback(1)


@pytest.mark.parametrize(
    ("name", "sampling"),
    few(
        product(zoo.MAIN_NAMES, (GREEDY, WARM, PENALISED)),
        ("gemma3_text", GREEDY),
        ("llama", WARM),
        ("qwen3_next", PENALISED),
    ),
)
def test_a_narrow_model_answers_as_one_of_its_own_width(name: str, sampling: Sampling) -> None:
    answers = []
    for loop in (narrow_loop(name), loop_of(name)):
        bench = Bench(loop).run(request(sampling=sampling))
        answers.append(bench.tokens["a"])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["cold", "warm"])
def test_a_draft_narrower_than_its_target_draws_the_same_noise(sampling: Sampling) -> None:
    """The target has 32 ids more than its draft, which are never likely: biased away."""
    bias = tuple((zoo.VOCAB_SIZE + i, -1e9) for i in range(32))
    asked = request(sampling=replace(sampling, logit_bias=bias))
    loop = build_loop(
        padded("llama"), zoo.VOCAB_SIZE + 32, LIMITS, draft=model("llama"), draft_name="tiny"
    )
    bench = Bench(loop).run(asked)
    stats = bench.finished["a"].stats
    assert stats.proposed > 10
    assert stats.accepted == stats.proposed


def test_a_draft_is_silent_about_a_text_with_ids_that_it_lacks() -> None:
    loop = build_loop(
        padded("llama"), zoo.VOCAB_SIZE + 32, LIMITS, draft=model("llama"), draft_name="tiny"
    )
    bench = Bench(loop).run(request(tokens=(*prompt(5), MISSING, *prompt(4))))
    assert bench.finished["a"].stats.proposed == 0
    assert len(bench.tokens["a"]) == 30


@pytest.mark.slow
def test_nothing_is_written_beyond_an_array() -> None:
    """The refusals again, with an allocator of glibc that fills freed memory and checks its own."""
    checked = {"MALLOC_PERTURB_": "165", "MALLOC_CHECK_": "3"}
    libraries = [os.environ.get("LD_PRELOAD", ""), find_library("c_malloc_debug") or ""]
    checked["LD_PRELOAD"] = " ".join(filter(None, libraries))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    files = [__file__, "tests/server/test_other_models.py"]
    done = subprocess.run(
        [*command, *files, "-k", "missing or lacks or narrow", "-m", "not slow"],
        env=os.environ | checked,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
