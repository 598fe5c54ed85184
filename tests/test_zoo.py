"""The tiny models: reproducible, without near-ties, not cyclic; noisy and padded copies behave as
documented.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from mlx import nn

from omlx.engine.device.model import cache_maker, id_limit
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.load_weights import load
from tests import zoo
from tests.lanes import few
from tests.zoo.build import save_family

PROMPT = [3, 14, 15, 92, 65, 35]
SOME = few(zoo.MAIN_NAMES, "llama", "recurrent_gemma", "deepseek_v3")


def greedy(model: nn.Module, steps: int) -> tuple[list[int], list[float]]:
    """Return greedy tokens, and the margin of each."""
    cache, window = zoo.make_cache(model), mx.array([PROMPT])
    tokens, margins = [], []
    for _ in range(steps):
        logits = model(window, cache=cache)[0, -1]
        second, first = mx.sort(logits)[-2:].tolist()
        tokens.append(mx.argmax(logits).item())
        margins.append(first - second)
        window = mx.array([tokens[-1:]])
    return tokens, margins


@pytest.mark.parametrize("name", SOME)
def test_greedy_output_is_varied_and_clear_of_ties(name: str) -> None:
    tokens, margins = greedy(zoo.build(name), 120)
    assert len(set(tokens)) > 20
    assert sum(margin > 1e-3 for margin in margins) >= 118


def test_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    first, again, other = (zoo.build("llama", seed)(mx.array([PROMPT])) for seed in (0, 0, 1))
    assert mx.array_equal(first, again)
    assert not mx.allclose(first, other)


@pytest.mark.parametrize("name", SOME)
def test_noise_makes_a_draft_that_agrees_often_but_not_always(name: str) -> None:
    model = zoo.build(name)
    noisy = zoo.noisy_copy(model, 0.1)
    tokens = mx.random.randint(0, zoo.VOCAB_SIZE, (1, 200), key=mx.random.key(5))
    same = mx.argmax(model(tokens, cache=zoo.make_cache(model)), -1) == mx.argmax(
        noisy(tokens, cache=zoo.make_cache(noisy)), -1
    )
    assert 0.2 < same.mean().item() < 0.99


@pytest.mark.parametrize("name", SOME)
def test_padded_vocabulary_leaves_real_logits_and_tempts_with_the_extra_ones(name: str) -> None:
    model = zoo.build(name)
    wide = zoo.padded_vocab(name, model, 32)
    tokens = mx.array([PROMPT])
    logits, padded = (
        model(tokens, cache=zoo.make_cache(model)),
        wide(tokens, cache=zoo.make_cache(wide)),
    )
    assert padded.shape[-1] == zoo.VOCAB_SIZE + 32
    assert mx.allclose(padded[..., : zoo.VOCAB_SIZE], logits, rtol=1e-4, atol=1e-4)
    assert (padded[..., zoo.VOCAB_SIZE :].max(-1) > logits.max(-1)).mean().item() > 0.6


UNSAVABLE = {"gear", "granitemoehybrid", "minimax_m3_vl"}
"""Classes of transformers refuse what these tiny configurations need."""


@pytest.mark.filterwarnings("ignore")  # transformers warns of types that it does not know
@pytest.mark.parametrize(
    "name", few(sorted(zoo.FAMILIES.keys() - UNSAVABLE), "llama", "gemma3_text", "qwen3_next")
)
def test_a_saved_family_is_as_wide_as_its_tokenizer(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(BUNDLED / "omlx-demo/draft", folder)
    save_family(zoo.FAMILIES[name], folder)
    loaded = load(ModelEntry(name, folder, "models"), "auto")
    assert id_limit(loaded.model, cache_maker(loaded.model)) == loaded.vocab_size
