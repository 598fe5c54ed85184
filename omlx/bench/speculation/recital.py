"""One model says what another said, at its own cost.

A hybrid and its attention twin were trained apart. They answer in words of their own, of which lookups and drafts find
more or less, so that their gains differ before a cache is rewound at all. To compare how they are served, both have to
write one text: the hybrid computes everything that it would, then the twin's next token is raised above all others.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from omlx.bench.sides import drive
from omlx.bench.subject import Subject
from omlx.engine.model import Cache
from omlx.engine.types import Request

RAISED: Final = 1e4
"""Added to a logit: more than logits and noise differ by, and still a float16."""


class Reciter(nn.Module):
    """`model`, saying the text that it was given last; nothing given, what it says itself.

    Reads the place from its cache, so that a rewind takes it back too: one row, with a cache that counts its tokens.
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

    def recite(self, text: Seq[int]) -> None:
        """From now on say `text`, prompt included, its last token once it is over; if empty, what the model says."""
        self._text = mx.array(tuple(text), mx.uint32)

    def __call__(self, inputs: mx.array, /, *, cache: Cache) -> mx.array:
        """Logits [1, tokens, V] for ids [1, tokens]."""
        if not self._text.size:
            logits: mx.array = self.model(inputs, cache=cache)
            return logits
        read = next(layer.offset for layer in cache if hasattr(layer, "offset"))
        logits = self.model(inputs, cache=cache)
        following = mx.arange(read + 1, read + 1 + inputs.shape[1])
        said = self._text[mx.minimum(following, self._text.size - 1)]
        return mx.where(mx.arange(logits.shape[-1]) == said[:, None], logits + RAISED, logits)


class Recital:
    """What a twin answers, asked once a question, so that a model can recite it."""

    def __init__(self, twin: Subject, model: Reciter) -> None:
        self._twin = twin
        self._model = model
        self._answers: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def learn(self, group: Seq[Request]) -> None:
        """Let the model recite what the twin answers to a single request without speculation. It takes requests that
        run together for what they are, and answers for itself."""
        if len(group) > 1:
            self._model.recite(())
            return
        (asked,) = group
        question = asked.tokens, asked.sampling.seed
        if question not in self._answers:
            (self._answers[question],) = drive(self._twin.loop, group).run.tokens
        self._model.recite((*asked.tokens, *self._answers[question]))
