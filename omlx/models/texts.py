"""Texts read without generating: embeddings, encodings, and document scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Final, Protocol, cast

import mlx.core as mx
import mlx.nn as nn

from omlx.engine.device_errors import DEVICE, DeviceFault, isolate
from omlx.errors import BadRequest, EngineError, NonFiniteLogits
from omlx.models.catalog.facts import PoolingMode

if TYPE_CHECKING:
    from omlx.engine.device.model import Cache, Model
    from omlx.engine.loop import ModelForTexts
    from omlx.engine.memory import MemoryGuard


class Encoded(Protocol):
    last_hidden_state: mx.array
    """[rows, tokens, hidden]"""


class Scored(Protocol):
    logits: mx.array
    """[rows, labels]"""


class Encoder(Protocol):
    def __call__(self, ids: mx.array, /) -> Encoded: ...


class Classifier(Protocol):
    """An encoder with a head that scores a text or a pair."""

    def __call__(self, ids: mx.array, /, *, token_type_ids: mx.array) -> Scored: ...


class ReadText(ABC):
    """Reader of a text, given as token ids, at least one."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self._fault: DeviceFault | None = None

    def step(self, loaded: ModelForTexts, memory: MemoryGuard) -> bool:
        """Call `advance`; after a first device error, read the text again from its start.

        Raises EngineError after a second error.
        """
        launched, done = DEVICE.seen, False
        with isolate() as outcome:
            done = self.advance(loaded, memory)
        fault = DEVICE.outcome(launched, computed=done)
        if fault is None and outcome.error is not None:
            raise outcome.error
        if fault is None:
            return done
        if self._fault is not None:
            raise EngineError("device.failed", kind=str(fault.kind))
        self._fault = fault
        self.restart()
        return False

    @abstractmethod
    def restart(self) -> None:
        """Discard all progress."""

    @abstractmethod
    def advance(self, loaded: ModelForTexts, memory: MemoryGuard) -> bool:
        """Read the next part; return whether it was the last. Call on the engine thread.

        Reads nothing while memory is being freed. Raises Overloaded without memory for KV cache and
        activations, BadRequest if the text can never fit.
        """

    def admitted(self, loaded: ModelForTexts, memory: MemoryGuard) -> bool:
        """Return whether there is memory to begin. Raises as `advance`."""
        layout = loaded.layout
        return memory.admit_text(len(self.tokens), layout, partial(self.activations, loaded))

    def activations(self, loaded: ModelForTexts, tokens: int) -> int:
        """Return the bytes of the shortest pass over a text of `tokens` tokens."""
        return loaded.chunk.min_activations(tokens)


class TextPass(ReadText):
    """A text with its own KV cache, read in chunks between other requests' steps."""

    def __init__(self, tokens: Sequence[int]) -> None:
        super().__init__(tokens)
        self._read = 0
        self._cache: Cache = []

    def restart(self) -> None:
        self._read, self._cache = 0, []

    def advance(self, loaded: ModelForTexts, memory: MemoryGuard) -> bool:
        """Read the next chunk. Raises as `read` and `finish`, too."""
        if not self._read:
            if not self.admitted(loaded, memory):
                return False
            self._cache = loaded.make_cache()
        wanted = min(loaded.limits.prefill_slice, len(self.tokens) - self._read)
        chunk = self.tokens[self._read : self._read + loaded.chunk.fit_alone(self._read, wanted)]
        result = self.read(loaded.model, mx.array([chunk], mx.uint32), self._cache)
        self._read += len(chunk)
        done = self._read == len(self.tokens)
        mx.eval([layer.state for layer in self._cache], *([result] if done else []))
        if done:
            self._cache = []
            self.finish(result)
        return done

    @abstractmethod
    def read(self, model: Model, tokens: mx.array, cache: Cache) -> mx.array:
        """Compute ids [1, tokens] after those in the cache; return the input of `finish`."""

    @abstractmethod
    def finish(self, result: mx.array) -> None:
        """Use the evaluated result of the last chunk."""


HIDDEN: Final = "model"
"""Attribute of an mlx-lm model that returns hidden states instead of logits."""


class Embedding(TextPass):
    """Embedding of a text; `vector` is empty until all tokens have been read."""

    def __init__(self, tokens: Sequence[int], mode: PoolingMode) -> None:
        super().__init__(tokens)
        self.vector: tuple[float, ...] = ()
        self._mode = mode
        self._sum: mx.array | None = None

    def restart(self) -> None:
        super().restart()
        self._sum = None

    def read(self, model: Model, tokens: mx.array, cache: Cache) -> mx.array:
        """Raises BadRequest for a model whose hidden states are not accessible."""
        states = hidden_states(model)(tokens, cache)[0].astype(mx.float32)  # [tokens, hidden]
        if self._mode == "last":
            return states[-1]
        total = states.sum(axis=0)
        self._sum = total if self._sum is None else self._sum + total
        mx.eval(self._sum)  # else the states of all chunks stay in memory
        return self._sum

    def finish(self, result: mx.array) -> None:
        mean = result / len(self.tokens) if self._mode == "mean" else result
        self.vector = tuple(cast(list[float], mean.tolist()))
        self._sum = None


def hidden_states(model: Model) -> Callable[[mx.array, Cache], mx.array]:
    """Return a function from (ids [1, tokens], cache) to hidden states [1, tokens, hidden].

    Raises BadRequest for a model that has none, or whose results have another shape.
    """
    body = model.get(HIDDEN) if isinstance(model, nn.Module) else None
    if not isinstance(body, nn.Module) or not callable(body):
        raise BadRequest("embedding.architecture", param="model")

    def read(tokens: mx.array, cache: Cache) -> mx.array:
        states = body(tokens, cache=cache)
        if not isinstance(states, mx.array) or states.ndim != 3:
            raise BadRequest("embedding.architecture", param="model")
        return states

    return read


class Judgement(TextPass):
    """Score of a prompt from the logits of `yes` and `no`; in [0, 1] after reading."""

    def __init__(self, tokens: Sequence[int], yes: int, no: int) -> None:
        super().__init__(tokens)
        self.score = 0.0
        self._answers = yes, no

    def read(self, model: Model, tokens: mx.array, cache: Cache) -> mx.array:
        logits = model(tokens, cache=cache)[0, -1]  # [vocab], evaluated after the last chunk only
        return mx.softmax(logits[mx.array(self._answers)].astype(mx.float32))[0]

    def finish(self, result: mx.array) -> None:
        """Raises NonFiniteLogits."""
        self.score = cast(float, result.item())
        if not isfinite(self.score):
            raise NonFiniteLogits("engine.not_finite")


class OnePass(ReadText):
    """A bidirectional text, which has to be read in one pass."""

    def restart(self) -> None:
        """There is nothing to forget."""

    def activations(self, loaded: ModelForTexts, tokens: int) -> int:
        return loaded.chunk.activations.estimate(tokens, tokens) or 0


class Encoding(OnePass):
    """Encoder vector of a text; empty until read."""

    def __init__(self, tokens: Sequence[int], mode: PoolingMode) -> None:
        super().__init__(tokens)
        self.vector: tuple[float, ...] = ()
        self._mode = mode

    def advance(self, loaded: ModelForTexts, memory: MemoryGuard) -> bool:
        if not self.admitted(loaded, memory):
            return False
        model = cast(Encoder, loaded.model)
        states = model(mx.array([self.tokens])).last_hidden_state[0]  # [tokens, hidden]
        states = states.astype(mx.float32)
        pooled = {"cls": states[0], "last": states[-1], "mean": states.mean(axis=0)}[self._mode]
        self.vector = tuple(cast(list[float], pooled.tolist()))
        return True


class PairScore(OnePass):
    """Relevance of a document, read with the query by an encoder with a classifier.

    `types` are 1 for the tokens of the document where the tokenizer distinguishes them. `score` is
    in [0, 1] once read.
    """

    def __init__(self, tokens: Sequence[int], types: Sequence[int]) -> None:
        super().__init__(tokens)
        self.score = 0.0
        self._types = types

    def advance(self, loaded: ModelForTexts, memory: MemoryGuard) -> bool:
        """Raises NonFiniteLogits."""
        if not self.admitted(loaded, memory):
            return False
        model = cast(Classifier, loaded.model)
        logits = model(mx.array([self.tokens]), token_type_ids=mx.array([self._types])).logits
        self.score = cast(float, mx.sigmoid(logits[0, 0].astype(mx.float32)).item())
        if not isfinite(self.score):
            raise NonFiniteLogits("engine.not_finite")
        return True
