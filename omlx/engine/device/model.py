"""Text models and their layer caches, of every library.

    ids ── embed ──► layers ──► last norm ──► hidden states ── score ──► logits
           └────────────── body ─────────────────────────┘

`split` uses public attributes alone, compares both ways, and refuses models that do more behind
their layers (soft caps, scales). The kind of a cache is a class of mlx-lm, or `Trimmed`; a class of
another library names in `same_as` the class with the same fields and meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, Protocol, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map, tree_reduce
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from omlx.engine.step.plan import Window
from omlx.errors import Reason


class Trimmed:
    """Base class of caches of one row, with an exact `trim` and a token count, `offset`."""

    merge = None

    def rows(self) -> tuple[mx.array, ...] | None:
        """Return arrays [1, heads, tokens, width] of all tokens; None before the first pass."""
        raise NotImplementedError

    def put_rows(self, rows: tuple[mx.array, ...], length: int) -> None:
        """Fill an empty cache with `length` tokens; the arrays may have more rows."""
        raise NotImplementedError


class Recorded:
    """Base class of recurrent states that record those behind each token of a short pass.

    For a class with the records of mlx-vlm's `ArraysCache`.
    """

    LONGEST: Final = 8
    """Tokens — length of passes with a record: a state per token takes memory."""

    def begin(self: Any, tokens: int) -> None:
        """Drop the record, and begin another if the next pass, of `tokens` tokens, is short."""
        states = self.cache
        self.abort_speculation()
        self.cache = states
        if 1 < tokens <= self.LONGEST:
            self.start_speculation(tokens)

    def records(self: Any, tokens: int) -> bool:
        """Return whether the state before the newest `tokens` tokens is known."""
        return bool(tokens <= self.history_capacity)

    def step_back(self: Any, tokens: int) -> None:
        """Return to that state, and drop the record."""
        self.commit_speculation([self.history_capacity - tokens])


ATTENTION: Final = frozenset({KVCache, QuantizedKVCache, RotatingKVCache})
"""Kinds whose rows share a ragged buffer."""
_KNOWN: Final = ATTENTION | {ChunkedKVCache, ConcatenateKVCache, ArraysCache, CacheList}


def _cache_kind(layer: type) -> type | None:
    if issubclass(layer, Trimmed):
        return Trimmed
    kind = getattr(layer, "same_as", layer)
    return kind if kind in _KNOWN else None


cache_kind: Final[Callable[[type], type | None]] = cache(_cache_kind)
"""Returns the kind of a class of layer caches; None for an unknown one."""

GROUP: Final = 32
"""Numbers of a head with one scale and bias — half the error of mlx-lm's default of 64."""


def quantized(cache: Iterable[Any], bits: int) -> list[Any]:
    """Return empty caches with quantized ones for plain KV caches; sliding and recurrent stay."""
    return [_quantized(leaf, bits) for leaf in cache]


def _quantized(leaf: Any, bits: int) -> Any:
    if cache_kind(type(leaf)) is CacheList:
        return type(leaf)(*quantized(leaf.caches, bits))
    if type(leaf) is KVCache:
        return QuantizedKVCache(GROUP, bits)
    return leaf


def handle(value: Any) -> Any:
    """Return a new handle of each array: a later write in place leaves the handle's data alone."""
    if isinstance(value, mx.array):
        return mx.array(value)
    if isinstance(value, tuple | list):
        return tuple(map(handle, value))
    return value


def copy_state(leaf: Any) -> Any:
    """Copy the state of a recurrent layer for a prefix: nested arrays, integers as arrays."""

    def copied(value: mx.array | int | None) -> mx.array | None:
        return None if value is None else mx.contiguous(mx.array(value))

    return tree_map(copied, getattr(leaf, "stored", leaf.cache))


def span_of(states: Iterable[Any]) -> int:
    """Return the tokens after which each of these states has grown; 0: none does."""
    return max((getattr(leaf, "ratio", 0) for leaf in states), default=0)


class LayerCache(Protocol):
    """Attributes of all cache classes of mlx-lm."""

    @property
    def state(self) -> Any: ...

    @property
    def nbytes(self) -> int: ...


Cache = list[LayerCache]
"""One cache per layer."""

MakeCache = Callable[[], Cache]

_NO_IDS: Final = ("wpe", "position", "ngram")
"""Name parts of embeddings indexed by position or hash, not by token id."""


class Model(Protocol):
    def __call__(self, inputs: mx.array, /, *, cache: Cache) -> mx.array:
        """Return logits [rows, tokens, V] of ids [rows, tokens]. Appends them to the cache."""
        ...


def architecture_of(model: object) -> str:
    """Return the module of a model's classes, such as `mlx_lm.models.llama`."""
    return str(getattr(model, "architecture", type(model).__module__))


def weight_bytes(model: Model) -> int:
    """Bytes of a model's parameters: what a pass reads at most. 0 if it has none."""
    if not isinstance(model, nn.Module):
        return 0
    return int(tree_reduce(lambda total, array: total + array.nbytes, model.parameters(), 0))


def float_bytes(model: Model) -> int:
    """Return the bytes of a float in most of a model's parameters: its passes compute in those."""
    if not isinstance(model, nn.Module):
        return mx.float32.size
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    floats = [array for _, array in parameters if mx.issubdtype(array.dtype, mx.floating)]
    sizes = Counter[int]()
    for array in floats:
        sizes[array.dtype.size] += array.size
    return max(sizes, key=sizes.__getitem__, default=mx.float32.size)


def id_limit(model: Model, make_cache: MakeCache) -> int:
    """Return the first token id that the model has no row for, in an embedding or in its logits.

    mlx checks no bounds: a greater id reads and writes beyond the array. Tokenizers of fine-tuned
    and text-only checkpoints have such ids.
    """
    logits = model(mx.zeros((1, 1), mx.uint32), cache=make_cache())  # [1, 1, V], never evaluated
    modules = model.named_modules() if isinstance(model, nn.Module) else []
    rows = [
        module.weight.shape[0]
        for name, module in modules
        if isinstance(module, nn.Embedding | nn.QuantizedEmbedding)
        and not any(part in name for part in _NO_IDS)
    ]
    return min([logits.shape[-1], *rows])


def cache_maker(model: Model, kv_bits: int | None = None) -> MakeCache:
    """Return a function that makes empty caches of the model's own kind, quantized to `kv_bits`."""
    return quantizing(cast(MakeCache, partial(make_prompt_cache, cast(Any, model))), kv_bits)


def quantizing(make_cache: MakeCache, bits: int | None) -> MakeCache:
    """Return a function that makes the same caches with `bits` per number; None: as they are."""
    return make_cache if bits is None else lambda: quantized(make_cache(), bits)


@dataclass(frozen=True, slots=True)
class SplitModel:
    """Parts of a text model. `body` maps ids [rows, tokens] to hidden states [rows, tokens, D] and
    appends to the `cache`, `embed` maps them to embeddings of that shape; `score` maps hidden
    states to logits [rows, tokens, V], by the module `output`. `text` has the layers and their
    sizes.
    """

    text: Any
    body: Callable[..., mx.array]
    embed: Callable[[mx.array], mx.array]
    score: Callable[[mx.array], mx.array]
    output: nn.Module


class Listener(Protocol):
    """Reads hidden states of the target that has these `parts`."""

    parts: SplitModel

    def listen(self, windows: Sequence[Window], tokens: mx.array, hidden: mx.array) -> None:
        """Take in a pass: its ids [rows, widest] and hidden states [rows, widest, D]."""
        ...


def split(
    model: Model, make_cache: MakeCache, vocab_size: int, parts: SplitModel | None = None
) -> SplitModel | Reason:
    """Return the parts of a model, or a reason unless they compute just what the model does.

    A pass of each shows it. `parts` None: those known by name.
    """
    refusal = Reason("spec.off.hidden", {"model": architecture_of(model).rpartition(".")[2]})
    parts = parts or parts_of(model)
    if parts is None:
        return refusal
    tokens = mx.random.randint(0, vocab_size, (1, 4), key=mx.random.key(0))
    whole = model(tokens, cache=make_cache())
    hidden = parts.body(tokens, cache=make_cache())
    if not isinstance(hidden, mx.array) or hidden.ndim != 3:
        return refusal
    logits = parts.score(hidden)
    if logits.shape != whole.shape or not mx.array_equal(logits, whole):
        return refusal
    return parts


def parts_of(model: Model) -> SplitModel | None:
    """Return the parts that a model has by name; None for one that is made otherwise."""
    text: Any = getattr(model, "language_model", model)
    body = getattr(text, "model", getattr(text, "backbone", None))
    embed = getattr(body, "embed_tokens", getattr(body, "embeddings", None))
    if not isinstance(body, nn.Module) or not isinstance(embed, nn.Module):
        return None
    head = getattr(text, "lm_head", None)
    score = cast(Any, embed).as_linear if head is None else head
    output = embed if head is None else head
    return SplitModel(text, cast(Any, body), cast(Any, embed), score, output)


@dataclass(eq=False)
class Taps:
    """Body of a target, with outputs of the layers numbered `ids` of each pass.

    Outputs are [rows, widest, D].
    """

    _body: Callable[..., mx.array]
    _layers: list[Any]
    ids: Sequence[int]
    _outputs: list[tuple[int, mx.array]] = field(default_factory=list)

    def __call__(self, tokens: mx.array, *, cache: Cache) -> mx.array:
        with tapped(self._layers, self.ids) as self._outputs:
            return self._body(tokens, cache=cache)

    def take(self) -> mx.array:
        """Return the outputs of the newest pass, [rows, widest, len(ids) * D], and drop them."""
        outputs = dict(self._outputs)
        self._outputs.clear()
        return mx.concatenate([outputs[i] for i in self.ids], axis=-1)


@contextmanager
def tapped(layers: list[Any], ids: Iterable[int]) -> Iterator[list[tuple[int, mx.array]]]:
    """Note numbers and outputs of the layers `ids`, in the order of calls.

    Callers of these layers stand in the list meanwhile: other users of the model see no change.
    """
    own, outputs = list(layers), list[tuple[int, mx.array]]()

    def call(number: int, layer: Any, *args: Any, **kwargs: Any) -> Any:
        output = layer(*args, **kwargs)
        outputs.append((number, output[0] if isinstance(output, tuple) else output))
        return output

    for i in set(ids):
        layers[i] = Caller(own[i], partial(call, i))
    try:
        yield outputs
    finally:
        layers[:] = own


class Caller(nn.Module):
    """Stand-in for a `module`, calls of which go to `call` with the module first."""

    def __init__(self, module: Any, call: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        self.module = module
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self["module"], *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if "module" not in self:  # while this module is made or copied
            raise AttributeError(name)
        return getattr(self["module"], name)
