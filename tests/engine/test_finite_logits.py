"""NaN and infinity are an error of the request, and nothing of it stays in the prefix cache."""

from __future__ import annotations

import copy
import math

import mlx.core as mx
import pytest
from mlx import nn

from omlx.engine.types import Speculation
from omlx.errors import NonFiniteLogits
from tests.engine.harness import Bench, loop_of, model, noisy, plain, prompt, request, unassisted

DAMAGE = {"nan": math.nan, "infinite": math.inf, "too large": 3e38}


def damaged(name: str, value: float) -> nn.Module:
    """A copy of a tiny model with `value` in one row of its last layer's first matrix."""
    broken = copy.deepcopy(model(name))
    matrices = [module for module in broken.layers[-1].modules() if isinstance(module, nn.Linear)]
    weight = matrices[0].weight
    weight[0] = mx.full(weight[0].shape, value, weight.dtype)
    return broken


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text", "falcon_h1"])
def test_a_damaged_model_fails_its_requests_and_caches_nothing(name: str, damage: str) -> None:
    loop = loop_of(damaged(name, DAMAGE[damage]), draft=noisy(name))
    for number in range(2):
        bench = Bench(loop)
        bench.submit(
            request("a", prompt(40), stable=32),
            unassisted(request("b", prompt(40, salt=1))),
            request("c", prompt(24), speculation=Speculation()),
        )
        bench.run()
        assert not bench.finished, number
        assert {type(failed.error) for failed in bench.failed.values()} == {NonFiniteLogits}
        assert [failed.error.code for failed in bench.failed.values()] == ["engine.not_finite"] * 3
        assert not any(bench.tokens.values())
    assert loop.scheduler.prefix.index.nbytes == 0


def test_a_passing_fault_fails_what_ran_and_leaves_the_model_sound() -> None:
    broken = damaged("llama", math.nan)
    sound = model("llama")
    loop = loop_of(broken)
    bench = Bench(loop).submit(request(tokens=prompt(40), stable=32))
    bench.run()
    broken.update(sound.parameters())
    again = unassisted(request("again", prompt(40), stable=32))
    bench.submit(again)
    bench.run()
    assert bench.finished["again"].stats.cached_n == 0
    assert bench.tokens["again"] == plain("llama", again)
