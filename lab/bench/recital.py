"""Recital: one model writes the answers of another one, at its own cost.

A hybrid and its attention twin were trained apart, and drafters predict more or less of their
different answers. To compare how they are served, both have to write the same text: the hybrid
computes everything, then the logit of the twin's next token is raised above all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from lab.bench.drive import run
from lab.bench.subject import Subject
from omlx.engine.device.model import Cache
from omlx.engine.types import Request

RAISED: Final = 1e4
"""Added to a logit: more than the range of logits and noise, and still a float16."""


class Reciter(nn.Module):
    """A model that writes given texts; its own answers if there are none.

    A cache layer of its own holds the ids that each row has read, and their positions: of them a
    row's text is known, wherever a batch puts the row, and a rewind moves it too.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx's own is not annotated
        self.model = model
        self._texts = mx.zeros((0, 0), mx.uint32)

    @property
    def layers(self) -> Any:
        return self.model.layers

    def make_cache(self) -> Cache:
        cache: Cache = [*make_prompt_cache(self.model), KVCache()]
        return cache

    def recite(self, texts: Sequence[Sequence[int]]) -> None:
        """Write these texts, each from its prompt on, and then repeat its last token; of none,
        write freely.
        """
        longest = max(map(len, texts), default=0)
        padded = [[*text, *[text[-1]] * (longest - len(text))] for text in texts]
        self._texts = mx.array(padded, mx.uint32).reshape(len(texts), longest)

    def __call__(self, inputs: mx.array, /, *, cache: Cache) -> mx.array:
        """Logits [rows, tokens, V] for ids [rows, tokens]."""
        inner, read = cache[:-1], cast(KVCache, cache[-1])
        places = mx.array(read.offset).reshape(-1, 1) + mx.arange(inputs.shape[1])
        columns = [array[:, None, :, None].astype(mx.float32) for array in (inputs, places)]
        known = [array[:, 0, :, 0].astype(mx.uint32) for array in read.update_and_fetch(*columns)]
        logits: mx.array = self.model(inputs, cache=inner)
        if not self._texts.size:
            return logits
        ids, positions = known
        last = self._texts.shape[1] - 1
        written = self._texts[:, mx.minimum(positions, last)]  # [texts, rows, read]
        text = mx.argmax(mx.sum(written == ids, axis=-1), axis=0)
        recited = self._texts[text[:, None], mx.minimum(places + 1, last)]
        raised = mx.arange(logits.shape[-1]) == recited[..., None]
        return mx.where(raised, logits + RAISED, logits)


class Recital:
    """The answers of a twin, computed once per question, for a model to recite."""

    def __init__(self, twin: Subject, model: Reciter) -> None:
        self._twin = twin
        self._model = model
        self._answers: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def learn(self, group: Sequence[Request]) -> None:
        """Let the model recite the twin's plain answers to these requests."""
        for asked in group:
            question = asked.tokens, asked.sampling.seed
            if question not in self._answers:
                (self._answers[question],) = run(self._twin.loop, [asked]).tokens
        answers = [self._answers[asked.tokens, asked.sampling.seed] for asked in group]
        pairs = zip(group, answers, strict=True)
        self._model.recite([(*asked.tokens, *answer) for asked, answer in pairs])
