"""Reading the weights of one model or draft head, in steps on the engine thread.

    build the model, lazily ─► cast ─► read weights in portions ─► probe in passes ─► LoadedModel

`check_checkpoint` comes first, on any thread: it reads headers and config alone. Every problem with
a directory is a ModelError that names the model. No code of a model runs unless it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import mlx.nn as nn

from omlx.engine.device_errors import isolate
from omlx.engine.types import Steps, run_through
from omlx.errors import ModelError, ModelGone, OmlxError, ProbeFailed, Reason, one_line
from omlx.models.catalog.config import (
    Number,
    check_counts,
    context_length,
    encoder_window,
    longest_context,
    pass_shape,
    sampling_defaults,
)
from omlx.models.catalog.drafters import HeadFiles, drafter_module, head_directory, own_head
from omlx.models.catalog.files import GENERATION_CONFIG
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer, tokenizer_length
from omlx.models.library.choose import AUTO, is_borrowed, is_encoder
from omlx.models.pool.cost_store import CostKey, machine
from omlx.models.pool.opening import (
    Dtype,
    LoadProgress,
    encoder_facts,
    import_classes,
    nbytes_of,
    open_encoder,
    open_model,
    read_weights,
)
from omlx.models.pool.speculation import DraftChoice
from omlx.models.vision.support import VisionSupport, failed, has_vision, read_support
from omlx.settings.schema import Settings
from omlx.text.tokens import Tokenizer

if TYPE_CHECKING:
    from omlx.engine.device.facts import ModelFacts
    from omlx.engine.device.model import Model
    from omlx.engine.device.runner import Runner
    from omlx.engine.speculation.cost_model import CostModel
    from omlx.engine.stage.stages import StageStatus


@dataclass(frozen=True, slots=True)
class StagedLoop:
    """Parts of an engine loop over a staged model, described by `layout`.

    `runner` returns a runner for all stages, each with caches of its own. `statuses` returns the
    latest status of each stage, by rank.
    """

    layout: str
    runner: Callable[[], Runner]
    statuses: Callable[[], tuple[StageStatus, ...]]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory; `vocab_size` is the tokenizer's, logits may be wider.

    `stage` is set if this process holds only some layers. `vision` describes image support. Models
    without `generates` are encoders. A user may raise the context to `longest_context`. `library`
    and `kv_bits` are the settings at loading.
    """

    model: Model
    tokenizer: Tokenizer
    context_length: int
    vocab_size: int
    stop_ids: frozenset[int]
    sampling: Mapping[str, Number]
    facts: ModelFacts
    size_bytes: int
    stage: StagedLoop | None = None
    vision: VisionSupport = field(default_factory=VisionSupport)
    generates: bool = True
    longest_context: int = 0
    library: str = AUTO
    kv_bits: int | None = None

    def follows(self, settings: Settings) -> bool:
        """Return whether the weights match the settings; stages, with the caches they made."""
        same_stages = self.stage is None or self.kv_bits == settings.kv_number_bits
        same_library = self.library == settings.library
        return same_stages and same_library and self.vision.follows(vision=settings.vision)

    def cost_key(self, choice: DraftChoice) -> CostKey:
        """Return the conditions under which measured costs of this target's passes are valid."""
        where = machine() if self.stage is None else f"{machine()} {self.stage.layout}"
        if self.facts.kv_bits is not None:
            where += f" kv_bits={self.facts.kv_bits}"
        dtype = choice.speculation.settings.dtype
        return CostKey(choice.target.id, dtype, self.size_bytes, where, version("mlx"))


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Settings at loading. `vision`: read the tower, too. A known `tokenizer` is not read again."""

    tokenizer: Tokenizer | None = None
    trusted: bool = False
    vision: bool = False
    library: str = AUTO
    kv_bits: int | None = None


LoadSteps: TypeAlias = Generator[LoadProgress | None, None, LoadedModel]
WeightReader: TypeAlias = Callable[[ModelEntry, Dtype, LoadOptions], LoadSteps]
T = TypeVar("T")
Y = TypeVar("Y")


def load(entry: ModelEntry, dtype: Dtype) -> LoadedModel:
    """Load a model without pauses, where no other model is served. Raises ModelError."""
    check_checkpoint(entry)
    return run_through(load_steps(entry, dtype))


def check_checkpoint(entry: ModelEntry, library: str = AUTO) -> None:
    """Raise ModelError for missing or damaged files, or a config of other weights.

    Imports classes of mlx-vlm. `library` is the setting.
    """
    with _naming(entry):
        if not entry.path.is_dir():
            raise ModelGone("model.folder_missing")
        files = entry.files
        tensors = files.tensors
        if tensors.truncated is not None:
            raise ModelError(tensors.truncated.code, param=None, **tensors.truncated.params)
        if not files.config:
            raise ModelError("model.no_config")
        check_counts(files.config, tensors.count)
        if is_borrowed(files.config, library):
            import_classes(files.config, "model.build")


def load_steps(entry: ModelEntry, dtype: Dtype, options: LoadOptions = LoadOptions()) -> LoadSteps:
    """Load a checked model in steps, with other work in between; return the model.

    The first progress has the total size, before any read; None is a step without progress. Raises
    ModelError, ProbeFailed for a model whose passes fail.
    """
    library, kv_bits = options.library, options.kv_bits
    with _naming(entry):
        entry.files.json(GENERATION_CONFIG)  # a damaged one is named before its use
        tokenizer = options.tokenizer or read_tokenizer(entry)
        if is_encoder(entry.files.config):
            encoder = yield from _encoder_steps(entry, dtype, tokenizer)
            return replace(encoder, library=library)
        support = VisionSupport(off_reason=Reason("vision.off.setting"))
        if options.vision or not has_vision(entry.files.config):
            support = read_support(entry.files, tokenizer, library)
        model, config, towers, support = _open(entry, dtype, support, options)
        yield from read_weights(model, *towers)
        for tower in towers:
            support = support.open(tower, cast("Model", model), nbytes_of(tower))
        facts = yield from probe(cast("Model", model), tokenizer_length(tokenizer), kv_bits)
        loaded = describe(entry, model, config, tokenizer, facts)
        size = loaded.size_bytes + support.tower_bytes
        return replace(loaded, vision=support, size_bytes=size, library=library, kv_bits=kv_bits)


def _open(
    entry: ModelEntry, dtype: Dtype, support: VisionSupport, options: LoadOptions
) -> tuple[nn.Module, dict[str, Any], list[nn.Module], VisionSupport]:
    """Return a model and its towers with lazy weights; without them if they fail."""
    trusted, library = options.trusted, options.library
    opened = partial(open_model, entry.path, dtype, trusted=trusted, library=library)
    if support.family is not None:
        with isolate() as outcome:
            return *opened(sees=True), support
        support = failed(outcome.error)
    return *opened(sees=False), support


def recached_steps(loaded: LoadedModel, kv_bits: int | None) -> Steps[LoadedModel]:
    """Return a model in memory with KV caches of `kv_bits`, a pass a step. Raises ProbeFailed."""
    if not loaded.generates or loaded.kv_bits == kv_bits:
        return loaded
    facts = yield from probe(loaded.model, loaded.vocab_size, kv_bits)
    return replace(loaded, facts=replace(facts, shape=loaded.facts.shape), kv_bits=kv_bits)


def next_step(steps: Generator[Y, None, T]) -> Y | T:
    """Return the progress of the next step, or the final result of `steps`."""
    try:
        return next(steps)
    except StopIteration as finished:
        loaded: T = finished.value
        return loaded


@contextmanager
def _naming(entry: ModelEntry) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        params = {**error.params, "model": entry.id}
        raise type(error)(error.code, param="model", **params) from error


def _encoder_steps(entry: ModelEntry, dtype: Dtype, tokenizer: Tokenizer) -> LoadSteps:
    files = entry.files
    config = files.config
    model = open_encoder(entry.path, config, dtype)
    yield from read_weights(model)
    with _probing():
        facts = encoder_facts(model, config, tokenizer_length(tokenizer))
    loaded = describe(entry, model, config, tokenizer, facts)
    window = encoder_window(files) or loaded.context_length
    return replace(loaded, context_length=window, longest_context=window, generates=False)


def probe(model: Model, vocab_size: int, kv_bits: int | None = None) -> Steps[ModelFacts]:
    """Return the engine's facts of a model in memory, a pass per step. Raises ProbeFailed."""
    from omlx.engine.device.facts import (  # noqa: PLC0415 — see `import_mlx_lm`
        facts_of,
        forward_failure,
        probed,
    )
    from omlx.engine.device.model import cache_maker  # noqa: PLC0415 — as above

    with _probing():
        facts = facts_of(model, vocab_size, cache_maker(model), kv_bits)
        make_cache = cache_maker(model, facts.kv_bits)
        yield
        failure = forward_failure(model, make_cache, facts.vocab_size)
        if failure is not None:
            raise ProbeFailed(failure.code)
        yield
        return (yield from probed(facts, model, make_cache))


@contextmanager
def _probing() -> Iterator[None]:
    """Turn errors of a pass into ProbeFailed."""
    try:
        yield
    except OmlxError:
        raise
    except Exception as error:  # with a wrong config, architectures of mlx-lm raise anything
        raise ProbeFailed("model.build", detail=one_line(error)) from error


def describe(
    entry: ModelEntry,
    model: nn.Module,
    config: Mapping[str, Any],
    tokenizer: Tokenizer,
    facts: ModelFacts,
) -> LoadedModel:
    """Combine a model in memory with the facts of its files."""
    from omlx.engine.device.model import float_bytes  # noqa: PLC0415 — see `import_mlx_lm`

    size = tokenizer_length(tokenizer)
    return LoadedModel(
        model=cast("Model", model),
        tokenizer=tokenizer,
        context_length=context_length(config, tokenizer.model_max_length),
        vocab_size=size,
        stop_ids=frozenset(token for token in tokenizer.eos_token_ids if 0 <= token < size),
        sampling=sampling_defaults(entry.files.json(GENERATION_CONFIG)),
        facts=replace(facts, shape=pass_shape(config, float_bytes(cast("Model", model)))),
        size_bytes=facts.weight_bytes,
        longest_context=longest_context(config, tokenizer.model_max_length),
    )


Report = Callable[[ModelEntry, LoadProgress], None]


def find_head(choice: DraftChoice, target: LoadedModel) -> HeadFiles | Reason:
    """Return the files of the chosen head, else the target's own, or a reason.

    Raises ModelError.
    """
    # A draft model excludes heads: it reads each prompt, although `auto` would not draft by it.
    if choice.draft_model is not None:
        return Reason("spec.off.head_unused", {"draft": choice.draft_model.id})
    files = own_head(choice.target) if choice.head is None else head_directory(choice.head)
    if isinstance(files, Reason):
        return files
    if target.stage is not None:
        return Reason("spec.off.head_staged")
    name = drafter_module(files.config)
    if name is not None:  # imported here: the engine thread has streams to serve
        import_classes({"model_type": name}, "spec.off.head_weights")
    return files


# -- exactness -------------------------------------------------------------------------------------


def exactness_steps(
    model: str, target: LoadedModel, cost_model: CostModel, longest: int
) -> Iterator[None]:
    """Measure the exactness of a model whose context is `longest` tokens, a pass a step.

    The result is kept with the costs. Requires the engine thread. Raises ModelError if it cannot be
    measured.
    """
    from omlx.engine.device.facts import measure_exactness  # noqa: PLC0415 — as above
    from omlx.engine.device.model import cache_maker  # noqa: PLC0415 — as above

    if target.stage is not None:
        raise ModelError("exact.stages", model=model)
    make_cache = cache_maker(target.model, target.facts.kv_bits)
    vocab_size = target.facts.vocab_size
    with isolate() as outcome:
        measured = measure_exactness(target.model, make_cache, vocab_size, longest)
        cost_model.exactness = yield from measured
    if outcome.error is not None:
        detail = one_line(outcome.error)
        raise ModelError("exact.failed", model=model, detail=detail) from outcome.error
