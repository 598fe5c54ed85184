"""The vectors of a real MiniLM are those of its weights, computed in NumPy in float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
from openai import OpenAI
from safetensors.numpy import load_file

from tests.real.models import MINILM
from tests.server.encoders.tiny import bert, ids_of
from tests.server.running import Running

pytestmark = pytest.mark.needs_extra

COSINE = 0.9999
TEXTS = (
    "How do I reset my password?",
    "I forgot my login, how can I set a new one?",
    "The Rhine rises in the Swiss Alps.",
    "Ein Fluss namens Rhein; 第一 🙂",
    "Licensed under the Apache License. " * 30,
)


@pytest.fixture(scope="module")
def vectors(server: Running) -> np.ndarray:
    """Vectors of the texts. [texts, hidden]"""
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model=MINILM.id, input=list(TEXTS))
    return np.array([found.embedding for found in answer.data])


def test_vectors_are_those_of_the_reference(vectors: np.ndarray) -> None:
    config = json.loads((MINILM.path / "config.json").read_text())
    weights = load_file(MINILM.path / "model.safetensors")
    body = {name: array.astype(np.float64) for name, array in weights.items()}
    for text, found in zip(TEXTS, vectors, strict=True):
        mean = bert(config, body, *ids_of(MINILM, text)).mean(axis=0)
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
        assert found @ mean / np.linalg.norm(mean) >= COSINE


def test_texts_that_mean_the_same_are_near(vectors: np.ndarray) -> None:
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.6 > 0.3 > likeness[0, 2]
