"""Text models of mlx-vlm behind the one call that the engine makes.

    config ── module_of ─► package of mlx-vlm ── load ─► language model ─► Borrowed
    its caches ── translated ─► mlx-lm's classes, or classes of ours

Classes of mlx-vlm are called, not patched. Its folders are read, never written.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn

from omlx.engine.device.kinds import Recorded
from omlx.engine.device.model import Caller
from omlx.engine.device.rewind import leaves, length_of
from omlx.models.library.sources import importing

_UNUSED: Final = ("mlx_audio", "mlx_audio.dsp", "cv2")
"""Modules for sound and video: some families import them, text models never call them."""
_INDEXED_BLOCKS: Final = "mlx_vlm.models.qwen4_exp"
"""Package with masks written out of bounds for texts shorter than a block of the indexer."""
_POSITIONED: Final = "mlx_vlm.models.ernie4_5_moe_vl"
"""Package whose attention takes the offset of its cache as one number, unless given positions."""
_POSITIONS: Final = frozenset({"_rope_deltas", "_position_ids"})
"""Attributes in which some language models keep the positions of an earlier row."""


def module_of(config: Mapping[str, Any]) -> ModuleType:
    """Import mlx-vlm's package of a model or drafter. Takes up to a second; thread-safe.

    Raises ImportError, and ValueError or KeyError for an unknown type.
    """
    with importing(), _stand_ins():
        from mlx_vlm.utils import get_model_and_args  # noqa: PLC0415 — needs the extra

        package: ModuleType = get_model_and_args(dict(config))[0]
    return package


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Provide empty modules in place of absent ones, during an import alone."""
    absent = [name for name in _UNUSED if find_spec(name.partition(".")[0]) is None]
    for name in absent:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(__path__=[], __getattr__=_any_name)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _any_name(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)


def open_borrowed(
    directory: Path, config: Mapping[str, Any], weights: Collection[Path]
) -> Borrowed:
    """Return a folder's text model and towers with lazy weights, those of the files `weights`.

    Raises the errors of mlx-vlm.
    """
    module_of(config)
    from mlx_vlm.utils import load_model  # noqa: PLC0415 — needs the extra

    others = set(directory.glob("*.safetensors")).difference(weights)
    with TemporaryDirectory(prefix="omlx-") as links:
        if others:  # mlx-vlm reads them too, such as draft heads
            for path in set(directory.iterdir()) - others:
                (Path(links) / path.name).symlink_to(path.resolve())
        whole = load_model(Path(links) if others else directory, lazy=True)
    return Borrowed(whole.pop("language_model"), whole)


def _positioned(
    body: Any, inputs: mx.array, *args: Any, cache: Any = None, **more: mx.array | None
) -> mx.array:
    """Return hidden states [rows, tokens, D]; positions are counted from each row's cache."""
    if cache is not None and more.get("position_ids") is None:
        places = mx.array(cache[0].offset).reshape(-1, 1) + mx.arange(inputs.shape[1])
        more["position_ids"] = mx.broadcast_to(places[..., None], (*inputs.shape, 3))
    hidden: mx.array = body(inputs, *args, cache=cache, **more)
    return hidden


def _stepped(
    shortest: int,
    body: Any,
    inputs: mx.array,
    inputs_embeds: mx.array | None = None,
    *,
    cache: Any = None,
    position_ids: mx.array | None = None,
    **more: Any,
) -> Any:
    """Return what a body returns, which reads texts below `shortest` tokens one at a time."""
    tokens = inputs.shape[1]
    for leaf in leaves(cache or ()):
        if isinstance(leaf, Recorded):
            leaf.begin(tokens)
    whole = cache is None or more or tokens + (length_of(cache) or 0) >= shortest
    step, outputs = tokens if whole else 1, []
    for at in range(0, tokens, step):
        part = slice(at, at + step)
        embeddings = None if inputs_embeds is None else inputs_embeds[:, part]
        places = None if position_ids is None else position_ids[..., part]
        read = body(inputs[:, part], embeddings, cache=cache, position_ids=places, **more)
        outputs.append(read)
    return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=1)


class Borrowed(nn.Module):
    """mlx-vlm's `language_model`, called as models of mlx-lm are.

    Language models with positions of their own are bypassed: body and head read them from the
    cache, so that rows of several lengths can take turns. `towers` is the rest of mlx-vlm's model.
    """

    def __init__(self, language_model: Any, towers: nn.Module | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        self.language_model: Any = language_model
        # The package of the classes, such as `mlx_vlm.models.mimo_v2`.
        self.architecture: str = type(language_model).__module__.removesuffix(".language")
        self._towers = (towers,)  # in a tuple: a module would be searched for parameters
        if self.architecture == _POSITIONED:
            language_model.model = Caller(language_model.model, _positioned)
        if self.architecture == _INDEXED_BLOCKS:
            shortest = language_model.args.indexer_compress_ratio - 1
            language_model.model = Caller(language_model.model, partial(_stepped, shortest))
        self._bypass = not _POSITIONS.isdisjoint(vars(language_model))

    def __call__(
        self,
        inputs: mx.array,
        /,
        *,
        cache: Any,
        input_embeddings: mx.array | None = None,
        **more: mx.array,
    ) -> mx.array:
        """Return logits [rows, tokens, V] of ids [rows, tokens]. Appends them to the cache.

        `input_embeddings` [rows, tokens, D] replace those of the ids; the body takes `more`.
        """
        text = self.language_model
        if input_embeddings is not None:
            more["inputs_embeds"] = input_embeddings
        if not self._bypass:
            logits: mx.array = text(inputs, cache=cache, **more).logits
            return logits
        hidden = text.model(inputs, cache=cache, **more)
        head = text.get("lm_head", None) or text.model.embed_tokens.as_linear
        logits = head(hidden)
        return logits

    @property
    def towers(self) -> nn.Module | None:
        return self._towers[0]

    def make_cache(self) -> list[Any]:
        from omlx.models.library.caches import make_cache  # noqa: PLC0415 — needs the extra

        return make_cache(self.language_model)

    @property
    def layers(self) -> list[nn.Module]:
        layers: list[nn.Module] = self.language_model.layers
        return layers

    @property
    def cast_predicate(self) -> Any:
        """Predicate of parameter names whose type may change; None without one."""
        try:
            return getattr(self.language_model, "cast_predicate", None)
        except TypeError:  # glm_moe_dsa of mlx-vlm 0.7.10 calls what mlx-lm has as a property
            return lambda name: "e_score_correction_bias" not in name
