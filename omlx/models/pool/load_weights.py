"""Reading the weights of one model, on the engine thread.

    build the model, lazily ─► cast ─► read weights in portions ─► LoadedModel

`check_checkpoint` comes first, on any thread: it reads headers and config alone.

Every problem with a directory becomes a ModelError that names the model. No code of a model runs
unless the caller says that it is trusted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from omlx.errors import ModelError, ModelGone
from omlx.models.catalog.check_config import check_counts
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.model_config import (
    Number,
    context_length,
    read_config,
    sampling_defaults,
    stop_ids,
)
from omlx.models.catalog.weight_files import check_whole, weight_files
from omlx.models.package.tokenizer import read_tokenizer, tokenizer_length

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.engine.inspection.facts import ModelFacts
    from omlx.engine.model import Model
    from omlx.engine.runner import Runner
    from omlx.engine.stage.stages import StageStatus

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

_STEP_BYTES = 64 << 20
_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Bytes of weights in memory, and in total."""

    done: int
    total: int


class StagedLoop(Protocol):
    """The parts of an engine loop over a model in stages. `layout` describes the stages."""

    facts: ModelFacts
    layout: str

    def runner(self) -> Runner:
        """Return a runner that reaches all stages; each has caches of its own."""
        ...

    def statuses(self) -> tuple[StageStatus, ...]:
        """Return all stages as last heard of, by rank."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory. `vocab_size` is that of its tokenizer; its logits may be wider.

    `stage` is what a loop needs of a model of which this process holds some layers only.
    """

    model: Model
    tokenizer: TokenizerWrapper
    context_length: int
    vocab_size: int
    stop_ids: frozenset[int]
    sampling: Mapping[str, Number]
    size_bytes: int
    stage: StagedLoop | None = None


def load(entry: ModelEntry, dtype: Dtype) -> LoadedModel:
    """Load a model without pauses, where no other model is served. Raises ModelError."""
    check_checkpoint(entry)
    steps = load_steps(entry, dtype)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            loaded: LoadedModel = finished.value
            return loaded


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
) -> Generator[LoadProgress, None, LoadedModel]:
    """Load a checked model in portions, so that other work can run in between; return it.

    The first progress has the total size, before anything is read. `tokenizer`: the one to use, if
    it has been read already. Raises ModelError.
    """
    with _naming(entry):
        return (yield from _steps(entry, dtype, tokenizer, trusted))


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
    entry: ModelEntry, dtype: Dtype, tokenizer: TokenizerWrapper | None, trusted: bool
) -> Generator[LoadProgress, None, LoadedModel]:
    read_config(entry.path, "generation_config.json")  # a damaged one is named before it is used
    if tokenizer is None:
        tokenizer = read_tokenizer(entry)
    model, config = open_model(entry.path, dtype, trusted=trusted)
    size_bytes = yield from read_weights(model)
    return describe(entry, model, config, tokenizer, size_bytes)


def open_model(directory: Path, dtype: Dtype, *, trusted: bool) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model with lazy weights of `dtype`, and its config. Raises ModelError."""
    model, config = _build(directory, trusted)
    _cast(model, config, dtype)
    return model, config


def describe(
    entry: ModelEntry,
    model: nn.Module,
    config: dict[str, Any],
    tokenizer: TokenizerWrapper,
    size_bytes: int,
) -> LoadedModel:
    """Return a model in memory with what its files say of it."""
    generation_config = read_config(entry.path, "generation_config.json")
    return LoadedModel(
        model=cast("Model", model),
        tokenizer=tokenizer,
        context_length=context_length(config, tokenizer.model_max_length),
        vocab_size=tokenizer_length(tokenizer),
        stop_ids=stop_ids(tokenizer.eos_token_ids, config, generation_config),
        sampling=sampling_defaults(generation_config),
        size_bytes=size_bytes,
    )


def _build(directory: Path, trusted: bool) -> tuple[nn.Module, dict[str, Any]]:
    """Return the model, with lazy weights, and its config."""
    from mlx_lm import utils  # noqa: PLC0415 — see `import_mlx_lm`

    config = read_config(directory, "config.json")
    if config.get("model_file") is not None and not trusted:
        raise ModelError("model.remote_code", file=str(config["model_file"]))
    try:
        return utils.load_model(directory, lazy=True, trust_remote_code=trusted)
    except Exception as error:  # with a wrong config, architectures of mlx-lm raise anything
        raise ModelError("model.build", detail=one_line(error)) from error


def _cast(model: nn.Module, config: Mapping[str, Any], dtype: Dtype) -> None:
    """Cast dense weights lazily; `auto` means float32 on a CPU. Quantized models are unchanged."""
    if config.get("quantization") or config.get("quantization_config"):
        return
    if dtype != "auto":
        model.set_dtype(_DTYPES[dtype])
    elif mx.default_device().type == mx.DeviceType.cpu:
        model.set_dtype(mx.float32)


def read_weights(model: nn.Module) -> Generator[LoadProgress, None, int]:
    """Evaluate the parameters in portions; return their bytes."""
    parameters = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    arrays = [array for _, array in parameters]
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
    return total


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
