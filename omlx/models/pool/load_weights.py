"""Reading the weights of one model, on the engine thread.

    build the model, lazily ─► cast ─► read weights in portions ─► probe in passes ─► LoadedModel

`check_checkpoint` comes first, on any thread: it reads headers and config alone.

Every problem with a directory becomes a ModelError that names the model. No code of a model runs
unless the caller says that it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx.engine.types import Steps, run_through
from omlx.errors import ModelError, ModelGone, OmlxError, ProbeFailed, Reason
from omlx.models.catalog.check_config import check_counts
from omlx.models.catalog.context import context_length, longest_context
from omlx.models.catalog.encoders import encoder_window, is_encoder
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.model_config import (
    Number,
    pass_shape,
    read_config,
    sampling_defaults,
)
from omlx.models.catalog.rope import rope_overrides
from omlx.models.catalog.text_halves import text_half
from omlx.models.catalog.weight_files import check_whole, tensor_names, weight_files
from omlx.models.eyes.open_eye import has_vision
from omlx.models.eyes.sight import LazySight, Sight, lazy_sight
from omlx.models.package.tokenizer import read_tokenizer, tokenizer_length
from omlx.models.pool.load_encoder import encoder_facts, open_encoder

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.engine.inspection.facts import ModelFacts
    from omlx.engine.model import Model
    from omlx.engine.runner import Runner
    from omlx.engine.stage.stages import StageStatus

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

_STEP_BYTES: Final = 64 << 20
"""Bytes of weights that are read in one step: some 20 ms from a fast disk."""

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes of weights in memory, and in total."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StagedLoop:
    """The parts of an engine loop over a model in stages, which `layout` describes.

    `runner` returns a runner that reaches all stages; each has caches of its own. `statuses`
    returns all stages as last heard of, by rank.
    """

    layout: str
    runner: Callable[[], Runner]
    statuses: Callable[[], tuple[StageStatus, ...]]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. `vocab_size` is that of its tokenizer; its logits may be wider.

    `stage` is what a loop needs of a model of which this process holds some layers only. `sight`
    says how it reads images. One that does not `generate` is an encoder. A user may raise the
    context to `longest_context`.
    """

    model: Model
    tokenizer: TokenizerWrapper
    context_length: int
    vocab_size: int
    stop_ids: frozenset[int]
    sampling: Mapping[str, Number]
    facts: ModelFacts
    size_bytes: int
    stage: StagedLoop | None = None
    sight: Sight = field(default_factory=Sight)
    generates: bool = True
    longest_context: int = 0


LoadSteps: TypeAlias = Generator[LoadProgress | None, None, LoadedModel]


def load(entry: ModelEntry, dtype: Dtype) -> LoadedModel:
    """Load a model without pauses, where no other model is served. Raises ModelError."""
    check_checkpoint(entry)
    return run_through(load_steps(entry, dtype))


def check_checkpoint(entry: ModelEntry) -> None:
    """Raise ModelError for files that are missing or damaged, or a config that cannot be theirs."""
    with _naming(entry):
        if not entry.path.is_dir():
            raise ModelGone("model.folder_missing")
        tensors = sum(check_whole(file) for file in weight_files(entry.path))
        config = read_config(entry.path, "config.json")
        if not config:
            raise ModelError("model.no_config")
        check_counts(config, tensors)


def load_steps(
    entry: ModelEntry,
    dtype: Dtype,
    *,
    tokenizer: TokenizerWrapper | None = None,
    trusted: bool = False,
    sees: bool = False,
) -> LoadSteps:
    """Load a checked model in steps, so that other work can run in between; return it.

    The first progress has the total size, before anything is read; None is a step without progress.
    `tokenizer`: the one to use, if it has been read already. `sees`: read its vision tower too.
    Raises ModelError, ProbeFailed for a model whose passes fail.
    """
    with _naming(entry):
        return (yield from _steps(entry, dtype, tokenizer, trusted, sees))


@contextmanager
def _naming(entry: ModelEntry) -> Iterator[None]:
    """Add the model's id to a ModelError."""
    try:
        yield
    except ModelError as error:
        raise type(error)(
            error.code, param="model", **{**error.params, "model": entry.id}
        ) from error


def _steps(
    entry: ModelEntry, dtype: Dtype, tokenizer: TokenizerWrapper | None, trusted: bool, sees: bool
) -> LoadSteps:
    read_config(entry.path, "generation_config.json")  # a damaged one is named before it is used
    if tokenizer is None:
        tokenizer = read_tokenizer(entry)
    if is_encoder(config := read_config(entry.path, "config.json")):
        return (yield from _encoder_steps(entry, config, dtype, tokenizer))
    model, config = open_model(entry.path, dtype, trusted=trusted)
    lazy = LazySight(off_reason=Reason("vision.off.setting"))
    if sees or not has_vision(config):
        lazy = lazy_sight(entry.path, config, tokenizer)
    towers = [] if lazy.vlm is None else [lazy.vlm]
    for tower in towers:
        cast_weights(tower, config, dtype)
    yield from read_weights(model, *towers)
    sight = lazy.open(cast("Model", model), sum(map(nbytes_of, towers)))
    facts = yield from probe(cast("Model", model), tokenizer_length(tokenizer))
    loaded = describe(entry, model, config, tokenizer, facts)
    return replace(loaded, sight=sight, size_bytes=loaded.size_bytes + sight.tower_bytes)


def _encoder_steps(
    entry: ModelEntry, config: dict[str, Any], dtype: Dtype, tokenizer: TokenizerWrapper
) -> LoadSteps:
    try:
        model = open_encoder(entry.path, config)
    except Exception as error:  # with a wrong config, mlx-vlm raises anything
        raise ModelError("model.build", detail=one_line(error)) from error
    mx.eval(mx.random.state)
    cast_weights(model, config, dtype)
    yield from read_weights(model)
    try:
        facts = encoder_facts(model, config, tokenizer_length(tokenizer))
    except OmlxError:
        raise
    except Exception as error:  # as above
        raise ProbeFailed("model.build", detail=one_line(error)) from error
    loaded = describe(entry, model, config, tokenizer, facts)
    window = encoder_window(entry.path, config) or loaded.context_length
    return replace(loaded, context_length=window, longest_context=window, generates=False)


def probe(model: Model, vocab_size: int) -> Steps[ModelFacts]:
    """Return what the engine must know of a model in memory: a pass a step. Raises ProbeFailed."""
    from omlx.engine.inspection.facts import (  # noqa: PLC0415 — see `import_mlx_lm`
        facts_of,
        forward_failure,
        probed,
    )
    from omlx.engine.model import cache_maker  # noqa: PLC0415 — as above

    try:
        make_cache = cache_maker(model)
        facts = facts_of(model, vocab_size, make_cache)
        yield
        failure = forward_failure(model, make_cache, facts.vocab_size)
        if failure is not None:
            raise ProbeFailed(failure.code)
        yield
        return (yield from probed(facts, model, make_cache))
    except OmlxError:
        raise
    except Exception as error:  # with a wrong config, architectures of mlx-lm raise anything
        raise ProbeFailed("model.build", detail=one_line(error)) from error


def open_model(directory: Path, dtype: Dtype, *, trusted: bool) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model with lazy weights of `dtype`, and its config. Raises ModelError."""
    model, config = _build(directory, trusted)
    # The model's random weights, which those of the file replace, were drawn lazily: until it is
    # evaluated, the state of the generator keeps every draw, 2 kB each.
    mx.eval(mx.random.state)
    cast_weights(model, config, dtype)
    return model, config


def describe(
    entry: ModelEntry,
    model: nn.Module,
    config: dict[str, Any],
    tokenizer: TokenizerWrapper,
    facts: ModelFacts,
) -> LoadedModel:
    """Return a model in memory with what its files say of it."""
    from omlx.engine.model import float_bytes  # noqa: PLC0415 — see `import_mlx_lm`

    generation_config = read_config(entry.path, "generation_config.json")
    shape = pass_shape(config, float_bytes(cast("Model", model)))
    size = tokenizer_length(tokenizer)
    return LoadedModel(
        model=cast("Model", model),
        tokenizer=tokenizer,
        context_length=context_length(config, tokenizer.model_max_length),
        vocab_size=size,
        stop_ids=frozenset(token for token in tokenizer.eos_token_ids if 0 <= token < size),
        sampling=sampling_defaults(generation_config),
        facts=replace(facts, shape=shape),
        size_bytes=facts.weight_bytes,
        longest_context=longest_context(config, tokenizer.model_max_length),
    )


def _build(directory: Path, trusted: bool) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model, with lazy weights, and its config."""
    from mlx_lm import utils  # noqa: PLC0415 — see `import_mlx_lm`

    from omlx.models.pool.text_half import text_half_classes  # noqa: PLC0415 — see `import_mlx_lm`

    config = read_config(directory, "config.json")
    if config.get("model_file") is not None and not trusted:
        raise ModelError("model.remote_code", file=str(config["model_file"]))
    overrides = rope_overrides(config)
    try:
        if text_half(config) is None:
            return utils.load_model(
                directory, lazy=True, model_config=overrides, trust_remote_code=trusted
            )
        tied = not any("lm_head" in name for name in _tensor_names(directory))
        return utils.load_model(
            directory,
            lazy=True,
            model_config={
                **overrides,
                "tie_word_embeddings": tied,
            },  # families disagree on where it stands
            get_model_classes=text_half_classes,
        )
    except Exception as error:  # with a wrong config, architectures of mlx-lm raise anything
        raise ModelError("model.build", detail=one_line(error)) from error


def _tensor_names(directory: Path) -> Iterator[str]:
    for file in weight_files(directory):
        yield from tensor_names(file)


def cast_weights(model: nn.Module, config: Mapping[str, Any], dtype: Dtype) -> None:
    """Cast dense weights lazily; `auto` means float32 on a CPU. Quantized models are unchanged."""
    if config.get("quantization") or config.get("quantization_config"):
        return
    if dtype != "auto":
        model.set_dtype(_DTYPES[dtype])
    elif mx.default_device().type == mx.DeviceType.cpu:
        model.set_dtype(mx.float32)


def read_weights(*models: nn.Module) -> Generator[LoadProgress, None, int]:
    """Evaluate the parameters in portions; return their bytes."""
    arrays = [array for model in models for array in _arrays(model)]
    total = sum(array.nbytes for array in arrays)
    yield LoadProgress(0, total)
    done = 0
    for portion in _portions(arrays):
        try:
            mx.eval(portion)
        except RuntimeError as error:
            raise ModelError("model.weights_unreadable", detail=one_line(error)) from error
        done += sum(array.nbytes for array in portion)
        yield LoadProgress(done, total)
    # Constants of modules, such as rotary frequencies. Evaluated first within a pass that fails,
    # they would be wrong for as long as the model is loaded.
    modules = [module for model in models for module in model.modules()]
    mx.eval([module[name] for module in modules for name in module if name.startswith("_")])
    return total


def _arrays(model: nn.Module) -> list[mx.array]:
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    return [array for _, array in parameters]


def nbytes_of(model: nn.Module) -> int:
    """Return the bytes of all parameters, read or not."""
    return sum(array.nbytes for array in _arrays(model))


def _portions(arrays: list[mx.array]) -> Iterator[list[mx.array]]:
    """Yield consecutive arrays of about `_STEP_BYTES` together."""
    portion: list[mx.array] = []
    for array in arrays:
        portion.append(array)
        if sum(array.nbytes for array in portion) >= _STEP_BYTES:
            yield portion
            portion = []
    if portion:
        yield portion


def one_line(error: Exception) -> str:
    """Return type and text of an error, shortened, without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
