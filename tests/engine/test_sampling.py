"""Samples follow the softmax; filters are mlx-lm's; no end token is drawn before a position."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import make_logits_processors

from omlx.engine.device.sampling import (
    Draw,
    RowSampler,
    draw,
    logprobs_of,
    noise,
    noise_key,
    permit,
    process,
)
from omlx.engine.speculation.strategy import parse
from omlx.engine.types import FinishReason, Sampling, Speculation, TokenLogprob, TokensCommitted
from tests import zoo
from tests.engine.harness import GREEDY, WARM, Bench, loop_of, model, noisy, plain, prompt, request
from tests.lanes import few

V = 12
LOGITS = mx.array([[2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, 2.2, 0.1, 0.7, -3.0]])
SAMPLES = 4000
CRITICAL = 31.3  # chi-square, 11 degrees of freedom, 0.1 %


def draws(sampling: Sampling, n: int = SAMPLES, first: int = 0) -> list[int]:
    """Tokens drawn at `n` positions from the same logits, rows of one call."""
    sampler = RowSampler(sampling, V)
    rows = mx.broadcast_to(LOGITS, (n, V))
    return draw(rows, [Draw(sampler, first + i) for i in range(n)]).tolist()


def chi_square(tokens: list[int], probabilities: mx.array) -> float:
    expected = (probabilities * len(tokens)).tolist()
    counts = [tokens.count(i) for i in range(V)]
    return sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True) if e > 0)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("seed", [0, 2**32, -1])
def test_draws_follow_the_softmax(temperature: float, seed: int) -> None:
    tokens = draws(Sampling(temperature=temperature, seed=seed))
    assert chi_square(tokens, mx.softmax(LOGITS[0] / temperature)) < CRITICAL


def test_top_choices_are_excluded_with_their_probability() -> None:
    sampling = Sampling(xtc_probability=0.4, xtc_threshold=0.12, xtc_spared=(1,))
    chances = mx.softmax(LOGITS[0])  # 8, 0 and 1 are above
    left = mx.where((mx.arange(V) == 8) | (mx.arange(V) == 0), 0.0, chances)
    expected = 0.6 * chances + 0.4 * left / left.sum()
    assert chi_square(draws(sampling), expected) < CRITICAL


def test_draws_at_one_position_over_seeds_follow_the_softmax() -> None:
    samplers = [RowSampler(Sampling(seed=seed), V) for seed in range(SAMPLES)]
    rows = mx.broadcast_to(LOGITS, (SAMPLES, V))
    tokens = draw(rows, [Draw(sampler, 17) for sampler in samplers]).tolist()
    assert chi_square(tokens, mx.softmax(LOGITS[0])) < CRITICAL


def test_neighbouring_positions_are_independent() -> None:
    tokens = draws(Sampling(seed=4), 2 * SAMPLES)
    follow = [b for a, b in zip(tokens[::2], tokens[1::2], strict=True) if a == 8]
    assert chi_square(follow, mx.softmax(LOGITS[0])) < CRITICAL


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=3), {8, 0, 1}),
        (Sampling(top_p=0.5), {8, 0}),
        (Sampling(min_p=0.4), {8, 0, 1}),
        (Sampling(top_k=1), {8}),
        (Sampling(top_k=4, top_p=0.5, min_p=0.1), {8, 0}),
        (Sampling(top_k=99, top_p=1.0), set(range(V))),
    ],
    ids=["top-k", "top-p", "min-p", "top-1", "together", "none"],
)
def test_filters_keep_the_likely_ones_in_proportion(sampling: Sampling, kept: set[int]) -> None:
    tokens = draws(replace(sampling, seed=3))
    assert set(tokens) == kept
    mask = mx.array([0.0 if i in kept else -mx.inf for i in range(V)])
    assert chi_square(tokens, mx.softmax(LOGITS[0] + mask)) < CRITICAL


def test_no_temperature_is_argmax() -> None:
    assert set(draws(Sampling(temperature=0.0, top_k=2), 8)) == {8}


def test_rows_of_one_call_draw_as_each_alone() -> None:
    samplings = [
        Sampling(temperature=0.9, seed=5),
        Sampling(temperature=0.0),
        Sampling(temperature=0.9, seed=2**63, top_p=0.7),
        Sampling(temperature=0.9, seed=5, choice=1),
    ]
    places = [Draw(RowSampler(s, V), 40 + i) for i, s in enumerate(samplings * 4)]
    rows = mx.broadcast_to(LOGITS, (len(places), V))
    assert draw(rows, places).tolist() == [draw(LOGITS, [place]).item() for place in places]
    alike = [Draw(RowSampler(Sampling(seed=i), V), 9) for i in range(len(places))]
    assert draw(rows, alike).tolist() == [draw(LOGITS, [place]).item() for place in alike]


def test_every_seed_is_accepted_and_has_noise_of_its_own() -> None:
    seeds = (0, 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1, -2)
    said = {tuple(draws(Sampling(seed=seed), 40)) for seed in seeds}
    assert len(said) == len(seeds)
    assert draws(Sampling(seed=-1), 40) == draws(Sampling(seed=2**64 - 1), 40)
    for seed in seeds:
        key = noise_key(seed, 3, 2**40)
        assert 0 <= min(key) <= max(key) < 2**32


@pytest.mark.parametrize("size", [1, 17, 50_003])
@pytest.mark.parametrize("rows", [1, 3])
def test_noise_has_the_bits_of_mlx_alone_in_a_window_and_for_some_ids(size: int, rows: int) -> None:
    def bits(values: mx.array) -> list[list[int]]:
        return values.view(mx.uint32).tolist()

    for seed in range(5):
        sampler = RowSampler(Sampling(seed=seed), size)
        places = [Draw(sampler, position) for position in range(rows)]
        keys = [mx.array(sampler.key(place.position), mx.uint32) for place in places]
        expected = mx.concatenate([mx.random.gumbel((1, size), key=key) for key in keys])
        assert bits(noise(places, size)) == bits(expected)
        ids = mx.random.randint(0, size, (rows, 9), mx.uint32, key=mx.random.key(seed))
        some = mx.take_along_axis(expected, ids, axis=-1)
        assert bits(noise(places, size, ids)) == bits(some)


def test_choices_differ_and_are_no_other_seeds_choices() -> None:
    keys = {
        noise_key(seed, choice, position)
        for seed, choice, position in product(range(5), range(5), range(50))
    }
    assert len(keys) == 5 * 5 * 50
    assert noise_key(7, 1, 0) != noise_key(8, 0, 0)
    assert draws(Sampling(seed=3, choice=0), 40) == draws(Sampling(seed=3), 40)
    assert draws(Sampling(seed=3, choice=1), 40) != draws(Sampling(seed=4), 40)


PENALTIES = Sampling(
    temperature=0.0,
    repetition_penalty=1.4,
    repetition_context=5,
    presence_penalty=0.3,
    presence_context=7,
    frequency_penalty=0.6,
    frequency_context=9,
    logit_bias=((3, 2.5), (8, -100.0)),
)


def test_penalties_are_those_of_mlx_lm_over_the_whole_history() -> None:
    history = mx.array([8, 8, 1, 0, 3, 8, 2, 2, 5, 1, 0, 11], mx.uint32)
    expected = LOGITS
    for processor in make_logits_processors({3: 2.5, 8: -100.0}, 1.4, 5, 0.3, 7, 0.6, 9):
        expected = processor(history, expected)
    before = mx.array(LOGITS)
    got = process(LOGITS, [Draw(RowSampler(PENALTIES, V), 12, history[-PENALTIES.history :])])
    assert mx.allclose(got, expected)
    assert mx.array_equal(LOGITS, before)


@pytest.mark.parametrize(
    ("temperature", "family", "draft"),
    few(product((0.0, 0.8), ("llama", "qwen3_next"), ("none", "perfect", "noisy")), every=5),
)
def test_penalties_with_speculation_equal_plain(
    family: str, draft: str, temperature: float
) -> None:
    sampling = replace(
        PENALTIES, temperature=temperature, seed=21, logit_bias=((4, 1.0), (9, -5.0))
    )
    one = request(tokens=prompt(9), sampling=sampling, max_tokens=36)
    drafter = {"none": None, "perfect": model(family), "noisy": noisy(family)}[draft]
    bench = Bench(loop_of(family, drafter)).run(one).proven(family, one)
    if draft == "perfect":
        assert bench.stats().accepted == bench.stats().proposed > 20


def test_penalties_in_a_batch_equal_plain() -> None:
    warm = [replace(PENALTIES, temperature=0.8, seed=i) for i in range(3)]
    rows = [request(f"{i}", prompt(5 + i, i), each, max_tokens=20) for i, each in enumerate(warm)]
    Bench(loop_of("llama")).run(*rows).proven("llama")


def test_a_seed_reproduces_and_choices_of_one_request_differ() -> None:
    samplings = [Sampling(temperature=1.0, seed=9, choice=i) for i in (0, 1, 2)] + [
        Sampling(temperature=1.0, seed=10)
    ]
    rows = [request(f"{i}", sampling=s, max_tokens=12) for i, s in enumerate(samplings)]
    first, again = (Bench(loop_of("llama")).run(*rows).tokens for _ in range(2))
    assert first == again
    assert len({tuple(tokens) for tokens in first.values()}) == 4


def test_logprobs_are_the_log_softmax_after_penalties_before_filters() -> None:
    chosen, ids, values = logprobs_of(LOGITS, mx.array([3], mx.uint32), 4)
    reference = LOGITS[0] - mx.logsumexp(LOGITS[0])
    assert mx.allclose(chosen, reference[3:4])
    assert ids.tolist() == [[8, 0, 1, 2]]
    assert mx.allclose(values[0], reference[mx.array([8, 0, 1, 2])])
    assert logprobs_of(LOGITS, mx.array([3], mx.uint32), 0)[1].shape == (1, 0)


@pytest.mark.parametrize("company", [False, True])
def test_logprobs_are_the_same_alone_drafted_and_in_company(company: bool) -> None:
    def logprobs(draft: bool) -> list[tuple[int, float, int]]:
        one = request(sampling=Sampling(temperature=0.8, seed=1), top_logprobs=3, max_tokens=14)
        others = [request("b", prompt(8, 3), top_logprobs=1)] if company else []
        bench = Bench(loop_of("llama", noisy("llama") if draft else None)).run(one, *others)
        entries: list[TokenLogprob] = []
        for event in bench.events:
            if event.request_id == "a" and isinstance(event, TokensCommitted):
                entries += event.logprobs or ()
        return [(entry.token, round(entry.logprob, 3), len(entry.top)) for entry in entries]

    plainly, drafted = logprobs(False), logprobs(True)
    assert [t for t, _, _ in plainly] == [t for t, _, _ in drafted]
    assert [p for _, p, _ in plainly] == pytest.approx([p for _, p, _ in drafted], abs=2e-3)
    assert {n for _, _, n in drafted} == {3}
    assert len(plainly) == 14


END = tuple(range(0, zoo.VOCAB_SIZE, 3))
"""So many end tokens that every answer meets one at once."""
TARGETS = ("llama", "gemma3_text", "recurrent_gemma")


@pytest.mark.parametrize("target", few(TARGETS, "recurrent_gemma"))
@pytest.mark.parametrize("sampling", few((WARM, GREEDY), WARM))
@pytest.mark.parametrize("strategy", ["ngram", "draft", "auto"])
def test_the_end_waits_for_its_position_under_speculation(
    target: str, sampling: Sampling, strategy: str
) -> None:
    tokens = prompt(13)
    late = replace(sampling, end_ids=END, end_position=len(tokens) + 20)
    speculation = Speculation(parse(strategy))
    more = {"max_tokens": 60, "stop_ids": frozenset(END), "speculation": speculation}
    asked = request("first", tokens, late, **more)
    expected = plain(target, asked)
    assert not set(expected[:20]) & set(END)
    assert expected[-1] in END
    bench = Bench(loop_of(target, noisy(target)))
    other = request("other", prompt(21, 1), sampling, max_tokens=30)
    bench.prove(target, "joined", asked, other, meet=5)


def test_a_mask_that_allows_ends_alone_wins() -> None:
    sampling = Sampling(temperature=0.7, end_ids=(2, 5), end_position=100)
    logits = mx.array([[9.0, 1.0, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0]])
    place = Draw(RowSampler(sampling, 8), 3)
    processed = process(logits, [place])
    assert int(draw(processed, [place]).item()) not in (2, 5)
    assert int(draw(permit(processed, [bytes([1 << 5])]), [place]).item()) == 5


def test_logits_are_unchanged_from_the_position_on() -> None:
    sampling = replace(WARM, end_ids=(2, 99), end_position=7)
    sampler = RowSampler(sampling, 8)
    logits = mx.array([[9.0, 1.0, 2.0, 3.0, 4.0, 1.0, 0.0, 0.0]])
    assert process(logits, [Draw(sampler, 7)]) is logits
    assert process(logits, [Draw(sampler, 6)])[0, 2].item() < -1e8
    assert not RowSampler(replace(GREEDY, end_ids=(2,), end_position=7), 8).bare
    assert RowSampler(replace(GREEDY, end_ids=(99,), end_position=7), 8).bare


def test_an_end_that_never_comes_is_the_limit() -> None:
    late = replace(GREEDY, end_ids=END, end_position=1 << 62)
    asked = request("a", prompt(13), late, max_tokens=40, stop_ids=frozenset(END))
    bench = Bench(loop_of("llama", model("llama"))).run(asked)
    assert len(bench.tokens["a"]) == 40
    assert bench.finished["a"].reason is FinishReason.LENGTH
