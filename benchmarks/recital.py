"""Recital: one model writes the answers of another one, at its own cost.

A hybrid and its attention twin were trained apart, and drafters predict more or less of their
different answers. To compare how they are served, both have to write the same text: the hybrid
computes everything, then the logit of the twin's next token is raised above all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.drive import run
from omlx.bench.subject import Subject
from omlx.engine.model import Cache
from omlx.engine.types import Request

RAISED: Final = 1e4
"""Added to a logit: more than the range of logits and noise, and still a float16."""


class Reciter(nn.Module):
    """A model that writes a given text; its own answers if there is none.

    It reads its position from the cache, so that a rewind moves it too. One row, with a cache that
    counts its tokens.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx's own is not annotated
        self.model = model
        self._text = mx.zeros((0,), mx.uint32)

    @property
    def layers(self) -> Any:
        return self.model.layers

    def make_cache(self) -> Cache:
        cache: Cache = make_prompt_cache(self.model)
        return cache

    def recite(self, text: Sequence[int]) -> None:
        """Write `text`, prompt included, and then repeat its last token; if empty, write freely."""
        self._text = mx.array(tuple(text), mx.uint32)

    def __call__(self, inputs: mx.array, /, *, cache: Cache) -> mx.array:
        """Logits [1, tokens, V] for ids [1, tokens]."""
        if not self._text.size:
            logits: mx.array = self.model(inputs, cache=cache)
            return logits
        read = next(layer.offset for layer in cache if hasattr(layer, "offset"))
        logits = self.model(inputs, cache=cache)
        following = mx.arange(read + 1, read + 1 + inputs.shape[1])
        recited = self._text[mx.minimum(following, self._text.size - 1)]
        return mx.where(mx.arange(logits.shape[-1]) == recited[:, None], logits + RAISED, logits)


class Recital:
    """The answers of a twin, computed once per question, for a model to recite."""

    def __init__(self, twin: Subject, model: Reciter) -> None:
        self._twin = twin
        self._model = model
        self._answers: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def learn(self, group: Sequence[Request]) -> None:
        """Let the model recite the twin's plain answer to a single request.

        To several requests that run together the model writes its own answers.
        """
        if len(group) > 1:
            self._model.recite(())
            return
        (asked,) = group
        question = asked.tokens, asked.sampling.seed
        if question not in self._answers:
            (self._answers[question],) = run(self._twin.loop, group).tokens
        self._model.recite((*asked.tokens, *self._answers[question]))
