"""Models with lazy weights of one dtype: mlx-lm's, text halves, encoders.

A text half is the text model of `text_config` that mlx-lm does not open itself, with weights named
as in transformers or mlx-vlm. An encoder gets an engine loop to account for its memory; the loop
answers no request.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map_with_path

from omlx.engine.piece import Layout
from omlx.engine.types import Traits
from omlx.errors import ModelError, ProbeFailed, Reason, one_line
from omlx.models.catalog.files import ADAPTER, ADAPTER_CONFIG, ModelFiles, read_header, whole_header
from omlx.models.library.choose import AUTO, ENCODERS, Library, choose, is_classifier, wrapped_text
from omlx.models.library.rope import rope_overrides
from omlx.models.library.sources import module_of
from omlx.models.texts import Classifier, Encoder

if TYPE_CHECKING:
    from omlx.engine.device.facts import ModelFacts

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_PREFIXES: Final = (
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.", "model."),
    ("lm_head.", "lm_head."),
)
"""Name prefixes, with their replacement in mlx-lm's text model; the first match counts."""
_ROPE: Final = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""ModernBERT's keys, which newer configs have in `rope_parameters`."""
_ACTIVATION: Final = "act"
_REWRITTEN: Final = "F8_E8M0"
"""Scales of 8 exponent bits, which mlx does not read."""
_IS_ENCODER: Final = Reason("model.encoder")
_STEP_BYTES: Final = 64 << 20
"""Bytes of weights read per step — some 20 ms from a fast disk."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes of weights in memory, and in total."""

    done: int
    total: int


def import_classes(config: Mapping[str, Any], code: str) -> None:
    """Import mlx-vlm's classes of a model: up to a second, not for the engine thread.

    Raises ModelError with `code`.
    """
    from omlx.models.library.borrow import module_of  # noqa: PLC0415 — see `import_mlx_lm`

    try:
        module_of(config)
    except (ImportError, LookupError, ValueError) as error:
        raise ModelError(code, detail=one_line(error)) from error


def open_model(
    directory: Path, dtype: Dtype, *, trusted: bool, library: str = AUTO, sees: bool = False
) -> tuple[nn.Module, dict[str, Any], list[nn.Module]]:
    """Return a model with lazy weights of `dtype`, the config and, if it `sees`, the towers.

    Raises ModelError.
    """
    files = ModelFiles.at(directory)
    classes = choose(files.config, trusted=trusted, library=library)
    if isinstance(classes, Reason):
        raise ModelError(classes.code, param=None, **classes.params)
    if classes.library is Library.MLX_VLM:
        _check_dtypes(directory)
    model: nn.Module
    try:
        if classes.library is Library.MLX_VLM:
            from omlx.models.library.borrow import open_borrowed  # noqa: PLC0415 — imports mlx-vlm

            model, towers = open_borrowed(directory, files.config, files.weights)
            config = dict(files.config)
        else:
            model, config, towers = _open_lm(files, classes.text, trusted=trusted, sees=sees)
    except Exception as error:  # with a wrong config, classes of models raise anything
        raise ModelError("model.build", detail=one_line(error)) from error
    if files.has(ADAPTER_CONFIG):
        _add_adapter(model, files)
    # The model's random weights, which those of the file replace, were drawn lazily: until it is
    # evaluated, the state of the generator keeps every draw, 2 kB each.
    mx.eval(mx.random.state)
    towers = towers if sees else []
    for part in (model, *towers):
        cast_weights(part, config, dtype)
    return model, config, towers


def _add_adapter(model: nn.Module, files: ModelFiles) -> None:
    """Add LoRA layers in mlx-lm's format, from beside the weights. Raises ModelError."""
    if "peft_type" in files.json(ADAPTER_CONFIG):
        raise ModelError("adapter.peft", param=None)
    if not whole_header(files.directory / ADAPTER).shapes:
        raise ModelError("adapter.failed", detail="no tensors")
    from mlx_lm.tuner.utils import load_adapters  # noqa: PLC0415 — see `import_mlx_lm`

    try:
        load_adapters(model, str(files.directory))
    except Exception as error:  # with an adapter of another model, mlx-lm raises anything
        raise ModelError("adapter.failed", detail=one_line(error)) from error
    model.eval()  # no dropout


def _check_dtypes(directory: Path) -> None:
    """Raise ModelError for shards that mlx-vlm would rewrite on disk to read them."""
    for file in sorted(directory.glob("*.safetensors")):
        if _REWRITTEN in read_header(file).dtypes:
            raise ModelError("model.dtype", param=None, file=file.name, dtype=_REWRITTEN)


def _open_lm(
    files: ModelFiles, text: Mapping[str, Any] | None, *, trusted: bool, sees: bool
) -> tuple[nn.Module, dict[str, Any], list[nn.Module]]:
    """Return mlx-lm's model, config and towers; `text` is that of a text half."""
    from mlx_lm import utils  # noqa: PLC0415 — see `import_mlx_lm`

    overrides = rope_overrides(files.config)
    if text is not None:  # families disagree on the place of this key
        overrides["tie_word_embeddings"] = not files.tensors.names_any("lm_head")
    options: dict[str, Any] = {"model_config": overrides, "trust_remote_code": trusted}
    classes = (TextHalf, TextHalfArgs) if text is not None else None
    if sees:
        from omlx.models.library.borrow import open_with_towers  # noqa: PLC0415 — imports mlx-vlm

        classes = classes or _lm_classes(files.config)
        return open_with_towers(files.directory, files.config, classes, **options)
    if classes is not None:
        options["get_model_classes"] = lambda config: classes
    model, config = utils.load_model(files.directory, lazy=True, **options)
    return model, config, []


def _lm_classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return mlx-lm's classes of a text model and its arguments."""
    module = import_module(f"mlx_lm.models.{module_of(config['model_type'])}")
    return module.Model, module.ModelArgs


def cast_weights(model: nn.Module, config: Mapping[str, Any], dtype: Dtype) -> None:
    """Cast dense weights lazily; `auto` means float32 on a CPU. Quantized models are unchanged.

    A class may exclude parameters that must not become narrower, such as biases of routers.
    """
    if config.get("quantization") or config.get("quantization_config"):
        return
    if dtype == "auto" and mx.default_device().type == mx.DeviceType.cpu:
        dtype = "float32"
    if dtype == "auto":
        return
    included = getattr(model, "cast_predicate", None)
    if included is None or dtype == "float32":
        model.set_dtype(_DTYPES[dtype])
        return

    def cast(path: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(_DTYPES[dtype]) if floating and included(path) else array

    model.update(tree_map_with_path(cast, model.parameters()))


def read_weights(*models: nn.Module) -> Generator[LoadProgress, None, int]:
    """Evaluate the parameters in portions; return their bytes."""
    arrays = [array for model in models for array in _arrays(model)]
    total = sum(array.nbytes for array in arrays)
    yield LoadProgress(0, total)
    done = 0
    while arrays:
        count = size = 0
        while count < len(arrays) and size < _STEP_BYTES:
            size += arrays[count].nbytes
            count += 1
        try:
            mx.eval(arrays[:count])
        except RuntimeError as error:
            raise ModelError("model.weights_unreadable", detail=one_line(error)) from error
        del arrays[:count]
        done += size
        yield LoadProgress(done, total)
    # Constants of modules, such as rotary frequencies. Constants evaluated first within a pass that
    # fails would be wrong for as long as the model is loaded.
    modules = [module for model in models for module in model.modules()]
    mx.eval([module[name] for module in modules for name in module if name.startswith("_")])
    return total


def _arrays(model: nn.Module) -> list[mx.array]:
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    return [array for _, array in parameters]


def nbytes_of(model: nn.Module) -> int:
    return sum(array.nbytes for array in _arrays(model))


class TextHalfArgs:
    """Model arguments for mlx-lm; `text` is the config of the text model."""

    def __init__(self, text: dict[str, Any]) -> None:
        self.text = text

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> TextHalfArgs:
        text = wrapped_text(config)
        assert text is not None, config.get("model_type")
        return cls(text)


class TextHalf(nn.Module):
    """mlx-lm's text model, under mlx-vlm's name."""

    def __init__(self, args: TextHalfArgs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx has no type for it
        model_class, args_class = _lm_classes(args.text)
        self.language_model = model_class(args_class.from_dict(args.text))
        if hasattr(self.language_model, "make_cache"):
            self.make_cache = self.language_model.make_cache

    def __call__(self, inputs: mx.array, cache: Any = None, **more: Any) -> mx.array:
        logits: mx.array = self.language_model(inputs, cache=cache, **more)
        return logits

    def sanitize(self, weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
        text = {}
        for name, array in weights.items():
            pair = next((pair for pair in _PREFIXES if name.startswith(pair[0])), None)
            if pair is not None:
                text[pair[1] + name.removeprefix(pair[0])] = array
        if hasattr(self.language_model, "sanitize"):
            text = self.language_model.sanitize(text)
        return {f"language_model.{name}": array for name, array in text.items()}

    @property
    def layers(self) -> list[nn.Module]:
        layers: list[nn.Module] = self.language_model.layers
        return layers


# -- encoders --------------------------------------------------------------------------------------


def open_encoder(directory: Path, config: Mapping[str, Any], dtype: Dtype) -> nn.Module:
    """Return an encoder of mlx-vlm with lazy weights of `dtype`. Raises ModelError."""
    name = "SequenceClassificationModel" if is_classifier(config) else "Model"
    try:
        from mlx_vlm.encoder_loader import load_encoder_model  # noqa: PLC0415 — needs the extra

        rope = config.get("rope_parameters") or {}
        thetas = {key: rope[kind]["rope_theta"] for kind, key in _ROPE.items() if kind in rope}
        model: nn.Module = load_encoder_model(
            directory,
            model_remapping=ENCODERS,
            model_class_name=name,
            config={**config, **thetas},
            lazy=True,
        )
        for _, module in model.named_modules():
            if isinstance(module.get(_ACTIVATION), nn.GELU):  # ModernBERT's is the approximated one
                module.update_modules({_ACTIVATION: nn.GELU()})
    except Exception as error:  # with a wrong config, mlx-vlm raises anything
        raise ModelError("model.build", detail=one_line(error)) from error
    mx.eval(mx.random.state)  # as above
    cast_weights(model, config, dtype)
    return model


def encoder_facts(model: nn.Module, config: Mapping[str, Any], vocab_size: int) -> ModelFacts:
    """Return the engine's facts of an encoder, after a pass.

    Raises ProbeFailed for non-finite numbers, and the errors of the model.
    """
    from omlx.engine.device.facts import ModelFacts  # noqa: PLC0415 — see `import_mlx_lm`
    from omlx.engine.device.model import weight_bytes  # noqa: PLC0415 — as above

    ids = mx.zeros((1, 2), mx.int32)
    if is_classifier(config):
        result = cast(Classifier, model)(ids, token_type_ids=ids).logits
    else:
        result = cast(Encoder, model)(ids).last_hidden_state
    if not isfinite(cast(float, mx.abs(result).max().item())):
        raise ProbeFailed("model.not_finite")
    return ModelFacts(
        vocab_size=min(vocab_size, int(config["vocab_size"])),
        weight_bytes=weight_bytes(cast(Any, model)),
        traits=Traits(recurrent=False, sliding_window=None, unsupported=()),
        layout=Layout(0),
        unbatchable=_IS_ENCODER,
        no_uneven=_IS_ENCODER,
        uncacheable=_IS_ENCODER,
        no_rewind=_IS_ENCODER,
    )


def head_refusal(detail: object) -> ModelError:
    return ModelError("spec.off.head_weights", detail=" ".join(str(detail).split())[:300])
