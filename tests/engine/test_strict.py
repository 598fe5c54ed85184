"""Strict models: what is measured, which passes keep to it, which answers come out.

`Uneven` is a model whose answers depend strongly on the widths of its passes: a chunk of a prompt
that is cut elsewhere, or a window that is too wide, gives other tokens at once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from lab.bench.console import Progress
from lab.bench.exact import STRICT_CONTEXT, compare_strict
from lab.bench.subject import Subject
from omlx.engine.build import build_loop
from omlx.engine.calibration import Calibration
from omlx.engine.device.facts import Differences, measure_exactness
from omlx.engine.device.model import cache_maker
from omlx.engine.loop import EngineLoop
from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import parse
from omlx.engine.step.plan import Restore, Save
from omlx.engine.types import CalibrationState, Limits, Request, Sampling, Speculation, run_through
from omlx.exactness import Bounds, Exactness
from tests import zoo
from tests.engine.harness import Bench, facts, loop_of, model, noisy
from tests.lanes import few

SHORT = 340
"""Tokens of context: enough for a chunk and a half."""


class Uneven(nn.Module):
    """Reads other tokens in passes over more than `even` tokens, and others in each such size."""

    def __init__(self, inner: Any, even: int, scale: float = 1.0) -> None:
        super().__init__()
        self.inner, self.even, self.scale = inner, even, scale

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        if ids.size > self.even:
            ids = (ids + ids.size) % zoo.VOCAB_SIZE
        logits: mx.array = self.inner(ids, cache=cache)
        return logits * self.scale

    def make_cache(self) -> Any:
        return cache_maker(self.inner)()


def measured(target: Any, longest: int = SHORT) -> Exactness:
    steps = measure_exactness(target, cache_maker(target), zoo.VOCAB_SIZE, longest)
    return run_through(steps)


def strict(target: Any, exactness: Exactness, family: str = "llama", **limits: Any) -> EngineLoop:
    own = Limits(context_length=1024, strict=True, block_tokens=8, **limits)
    more = {"limits": own, "costs": CostModel(exactness=exactness), "facts": facts(family)}
    return loop_of(target, model("llama"), None, **more)


def request(tokens: int, **more: Any) -> Request:
    prompt = tuple((7 * i) % 50 + 1 for i in range(tokens))
    return Request("a", prompt, Sampling(temperature=0.0), **{"max_tokens": 8, **more})


def test_widths_and_rows_are_equal_up_to_what_the_model_bears() -> None:
    found = measured(Uneven(model("llama"), even=5))
    for differences in (found.windows, found.rows):
        assert [size for size, value in differences.items() if value > 1e-3] == [
            size for size in differences if size > 5
        ]
    assert found.width <= 5 >= found.batch
    assert Exactness.from_json(found.to_json()) == found


def test_a_model_of_plain_products_on_this_machine_is_measured_the_same_twice() -> None:
    assert measured(model("llama")) == measured(model("llama"))


def test_a_model_with_states_is_rolled_back_between_windows() -> None:
    found = measured(Uneven(model("falcon_h1"), even=16))
    assert set(found.windows) == set(range(2, 17))
    assert max(found.windows.values()) < 1e-3, "a state of the window before was left"


def test_numbers_that_are_not_finite_cannot_be_measured() -> None:
    with pytest.raises(ArithmeticError):
        measured(Uneven(model("llama"), even=16, scale=float("nan")))


@pytest.mark.parametrize("family", few(("llama", "falcon_h1"), "falcon_h1"))
def test_answers_in_company_are_those_of_plain_decoding_alone(family: str) -> None:
    target = Uneven(model(family), even=3)
    prompts = [tuple((11 * i + j) % 60 + 1 for j in range(300)) for i in range(4)]
    subject = Subject(target, noisy(family), zoo.VOCAB_SIZE, frozenset(), prompts)
    with Progress(1, "answer") as progress:
        found = compare_strict(subject, 10, progress, facts(family))
    assert found.differ == 0
    assert found.differ_ties > 0, "widths do not show in these answers"
    assert (found.accepted > 0) == (found.measured.width > 1)
    assert (found.batched > 0) == (found.measured.batch > 1)


def test_no_pass_exceeds_what_was_measured() -> None:
    loop = strict(Uneven(model("llama"), even=3), Exactness((60,), {2: 0.0, 3: 0.0}, {2: 0.0}))
    bench, widths, rows = Bench(loop), set(), set()
    speculation = Speculation(parse("draft"))
    lengths = {"a": 300, "b": 20, "c": 9}
    more = {"max_tokens": 24, "speculation": speculation}
    bench.run(*(replace(request(n, **more), id=name) for name, n in lengths.items()))
    for plan in bench.plans:
        for forward in plan.forwards:
            for window in forward.windows:
                if window.sample:
                    widths.add(window.width)
                    rows.add(len(forward.windows))
                else:
                    assert window.start % 256 == 0
    assert max(widths) <= 3
    assert max(rows) == 2


def test_without_equal_widths_nothing_drafts_and_nothing_is_shared() -> None:
    differs = Exactness((60,), {2: 0.25}, {2: 0.5})
    snapshot = strict(model("llama"), differs).snapshot()
    assert snapshot.off_reason.code == "exact.off.windows"
    assert snapshot.unbatchable.code == "exact.off.rows"
    assert snapshot.off_reason.params == {"difference": 0.5}


def test_a_sliding_window_is_not_promised() -> None:
    equal = Exactness((60,), dict.fromkeys(range(2, 17), 0.0), dict.fromkeys(range(2, 9), 0.0))
    snapshot = strict(model("gemma3_text"), equal, "gemma3_text").snapshot()
    assert snapshot.off_reason.code == "exact.off.sliding"
    assert snapshot.bounds == Bounds(1, 1, 256)


def test_prefixes_end_at_whole_chunks_and_have_no_answer() -> None:
    loop = strict(model("llama"), Exactness((60,)), prefix_bytes=64 << 20)
    for length in (600, 601, 300):
        bench = Bench(loop).run(request(length))
        restored = [op.length for op in bench.ops(Restore)]
        assert restored == {600: [], 601: [512], 300: [256]}[length]
        assert bool(bench.ops(Save)) == (length == 600)


def test_a_resumed_answer_is_read_in_windows_that_equal_its_steps() -> None:
    target = Uneven(model("llama"), even=3)
    exactness = Exactness((60,), {2: 0.0, 3: 0.0}, {})
    whole = _tokens(strict(target, exactness), request(40, max_tokens=24))
    asked = request(40, max_tokens=24)
    resumed = replace(asked, tokens=(*asked.tokens, *whole[:9]), resumed=9)
    assert _tokens(strict(target, exactness), resumed) == whole[9:]


def _tokens(loop: EngineLoop, asked: Request) -> tuple[int, ...]:
    return tuple(Bench(loop).run(asked).tokens[asked.id])


def test_a_strict_model_is_calibrated_at_every_width() -> None:
    loop = strict(model("llama"), Exactness((60,), {2: 0.0, 3: 0.0}, {}))
    calibration = Calibration("m", loop)
    calibration.run(lambda: False)
    assert calibration.state is CalibrationState.DONE
    assert not calibration.pending
    assert loop.cost_model.widest(1) > 3


def test_an_idle_model_is_measured_unless_it_is_interrupted() -> None:
    own = Limits(context_length=SHORT)
    loop = build_loop(model("llama"), zoo.VOCAB_SIZE, own, facts=facts("llama"))
    calibration = Calibration("m", loop)
    turns = count()
    calibration.run(lambda: next(turns) > 1200)
    assert loop.cost_model.exactness == measured(model("llama"))
    assert not calibration.pending


def test_an_interrupted_measurement_continues_with_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omlx.engine.device.facts.CONTEXTS", (8, 70))
    target, known, sizes = model("llama"), Differences(), [0]
    whole, found = measured(target), None
    while found is None:
        steps = measure_exactness(target, cache_maker(target), zoo.VOCAB_SIZE, SHORT, known)
        try:
            for _ in range(45):
                next(steps)
        except StopIteration as finished:
            found = finished.value
        sizes.append(len(known))
    assert found == whole
    assert len(sizes) > 4
    assert sizes == sorted(set(sizes)), "each try adds some"


def test_chunks_of_a_prompt_end_on_the_grid() -> None:
    bounds = Bounds(width=3, rows=1, grid=256)
    assert [bounds.chunk_end(at, 700, 700) for at in (0, 256, 300, 512)] == [256, 512, 512, 699]
    assert [bounds.chunk_end(at, 10, 20) for at in (0, 9, 12, 18)] == [9, 12, 15, 19]


def test_the_probe_reads_behind_a_context_that_fits() -> None:
    assert measured(model("llama"), longest=STRICT_CONTEXT // 8).contexts == (60,)
