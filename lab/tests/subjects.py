"""Tiny models to run the bench on."""

from __future__ import annotations

from lab.bench.subject import Subject
from tests.zoo import VOCAB_SIZE, build, noisy_copy

PROMPTS = [(1, 2, 3, 4, 5, 6, 7), (9, 8, 7, 6, 5), (11, 12, 13)]


def subject(name: str = "llama", stop_ids: frozenset[int] = frozenset()) -> Subject:
    """A model of the zoo with a draft that is often right."""
    model = build(name)
    return Subject(model, noisy_copy(model, 0.05), VOCAB_SIZE, stop_ids, PROMPTS)
