"""Text models of mlx-vlm behind the one call that the engine makes.

    config ── module_of ─► package of mlx-vlm ── load ─► language model ─► Borrowed
    its caches ── translated ─► mlx-lm's classes, or classes of ours

Classes of mlx-vlm are called, not patched. Its folders are read, never written.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn

from omlx.engine.device.model import Caller, Recorded
from omlx.engine.device.rewind import leaves, length_of
from omlx.models.library.sources import importing

_SOUND: Final = ("mlx_audio.dsp", ("hanning", "mel_filters", "stft"))
"""Module that Inkling imports with these names; text models never call them."""
_POSITIONS: Final = frozenset({"_rope_deltas", "_position_ids"})
"""Attributes in which some language models keep the positions of an earlier row."""
_CONFIGS: Final = ("text", "vision", "perceiver", "projector", "audio")
_OTHERS: Final = (
    *("language_model", "audio_tower", "embed_audio", "audio_encoder", "speech_embeddings"),
)
"""Modules of mlx-vlm's models for text and audio."""


def module_of(config: Mapping[str, Any]) -> ModuleType:
    """Import mlx-vlm's package of a model or drafter. Takes up to a second; thread-safe.

    Raises ImportError, and ValueError or KeyError for an unknown type.
    """
    name, functions = _SOUND
    with importing():
        from mlx_vlm.utils import get_model_and_args  # noqa: PLC0415 — needs the extra

        absent = find_spec(name.partition(".")[0]) is None
        if absent:
            sys.modules[name] = ModuleType(name)
            vars(sys.modules[name]).update(dict.fromkeys(functions))
        try:
            package: ModuleType = get_model_and_args(dict(config))[0]
        finally:
            if absent:
                del sys.modules[name]
    return package


def open_borrowed(
    directory: Path, config: Mapping[str, Any], weights: Collection[Path]
) -> tuple[Borrowed, list[nn.Module]]:
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
    return Borrowed(whole.language_model), [_towers(whole)]


def open_with_towers(
    directory: Path, config: Mapping[str, Any], classes: tuple[Any, Any], **options: Any
) -> tuple[nn.Module, dict[str, Any], list[nn.Module]]:
    """Return mlx-lm's text model, the config and mlx-vlm's towers with lazy weights, by one load.

    `classes` are those of the text model and of its arguments, `options` those of mlx-lm's loader.
    """
    package: Any = module_of(config)
    from mlx_lm.utils import load_model  # noqa: PLC0415 — beside mlx-vlm's
    from mlx_vlm.utils import sanitize_weights, update_module_configs  # noqa: PLC0415 — the extra

    parts = deepcopy({"text_config": config.get("llm_config", {}), "audio_config": {}} | {**config})
    settings: Any = package.ModelConfig.from_dict(parts)
    settings = update_module_configs(settings, package, parts, _CONFIGS)
    whole: Any = package.Model(settings)
    towers = {name: part for name, part in whole.items() if name not in _OTHERS}
    prefixes = tuple(f"{name}." for name in towers)

    def joined(args: Any) -> Any:
        text = classes[0](args)
        sanitize_text = text.sanitize

        def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
            # mlx-vlm adds to norms in place
            seen: Any = {name: mx.array(array) for name, array in weights.items()}
            seen = sanitize_weights(whole, seen)
            seen = sanitize_weights(package.VisionModel, seen, settings.vision_config)
            seen = {name: seen[name] for name in seen if f"{name}.".startswith(prefixes)}
            return {**sanitize_text(weights), **seen}

        text.sanitize = sanitize
        for name, part in towers.items():
            text[name] = part
        return text

    options["get_model_classes"] = lambda config: (joined, classes[1])
    model, loaded = load_model(directory, lazy=True, **options)
    del model.sanitize
    for name in towers:
        whole[name] = model.pop(name)
    return model, loaded, [_towers(whole)]


def _towers(whole: nn.Module) -> nn.Module:
    """Return mlx-vlm's model without the modules that images do not need."""
    for name in _OTHERS:
        whole.pop(name, None)
    return whole


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
    cache, so that rows of several lengths can take turns.
    """

    def __init__(self, language_model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        self.language_model: Any = language_model
        # The package of the classes, such as `mlx_vlm.models.mimo_v2`.
        self.architecture: str = type(language_model).__module__.removesuffix(".language")
        self._bypass = not _POSITIONS.isdisjoint(vars(language_model))
        args = getattr(language_model, "args", None)
        if hasattr(args, "rope_3d"):  # attention takes one number as the offset
            language_model.model = Caller(language_model.model, _positioned)
        # Masks of texts shorter than a block of the indexer are written out of bounds.
        self._stepped = hasattr(args, "indexer_compress_ratio")
        if args is not None and self._stepped:
            shortest = args.indexer_compress_ratio - 1
            language_model.model = Caller(language_model.model, partial(_stepped, shortest))
        compressors = [part for part in language_model.modules() if getattr(part, "overlap", False)]
        self._overlaps = frozenset(part.compress_ratio for part in compressors)

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
        if self._bypass:
            head = text.get("lm_head", None) or text.model.embed_tokens.as_linear
            logits: mx.array = head(text.model(inputs, cache=cache, **more))
        else:
            logits = text(inputs, cache=cache, **more).logits
        return logits

    def make_cache(self) -> list[Any]:
        from omlx.models.library.caches import make_cache  # noqa: PLC0415 — needs the extra

        return make_cache(self.language_model, self._overlaps, recorded=self._stepped)

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
