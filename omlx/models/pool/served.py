"""Resident models, leases, and their records. Used on the event loop only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.engine.speculation.cost_model import CostModel
from omlx.engine.speculation.strategy import MTP
from omlx.engine.stage.stages import StageStatus
from omlx.engine.types import Limits
from omlx.errors import Reason, optional_reason
from omlx.exactness import ExactnessClaim
from omlx.models.catalog.facts import ModelIdentity
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.cost_store import LoadedCosts
from omlx.models.pool.load_weights import LoadedModel
from omlx.models.pool.opening import Dtype, LoadProgress
from omlx.models.pool.speculation import SpeculationConfig
from omlx.models.vision.support import VisionSupport
from omlx.settings.layers import Source
from omlx.settings.schema import STRICT, Group, Settings, table
from omlx.text.constraint import ThinkingBudgets
from omlx.text.grammar import GrammarCompiler
from omlx.text.tokens import Tokenizer

if TYPE_CHECKING:
    from omlx.engine.device.facts import ModelFacts
    from omlx.engine.loop import EngineLoop
    from omlx.text.tokens import TokenBytes


log = logging.getLogger("omlx.models")


class State(StrEnum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "leaving"  # the value is part of the API
    """Active requests finish; new ones wait."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """Status of a model in the pool.

    `active` counts requests, `waiting` those that wait for loading; `weights_bytes` are those of
    target and draft; `idle_s` is None while requests are active; `ttl_s` is the idle time-out, None
    without one; `stages` is empty for a model in one process. `reloading`: its draft or settings
    are replaced.
    """

    state: State
    progress: LoadProgress | None = None
    active: int = 0
    waiting: int = 0
    pinned: bool = False
    weights_bytes: int = 0
    draft: str | None = None
    idle_s: float | None = None
    ttl_s: float | None = None
    stages: tuple[StageStatus, ...] = ()
    reloading: bool = False

    @property
    def machines(self) -> int:
        """Number of machines with stages; several processes may share a machine."""
        return len({stage.machine for stage in self.stages})


@dataclass(frozen=True, slots=True)
class KVCacheFacts:
    """Bytes of a token in all full-attention layers; `bits` of a quantized number.

    `reason`: why the caches are not quantized, although the setting asks for that.
    """

    token_bytes: int = 0
    bits: int | None = None
    reason: Reason | None = None

    @classmethod
    def of(cls, facts: ModelFacts) -> KVCacheFacts:
        return cls(facts.layout.row_bytes, facts.kv_bits, facts.no_kv_bits)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Facts of a loaded model that a request needs.

    `no_draft_reason` says why no draft is in use, `missing` why no drafter of a kind is;
    `head_kind` names the trained drafter, chosen or the model's own, `draft_kind` the draft in use;
    `off_reason` says why no drafter can be, where the cache cannot roll back; `narrow` how many
    tokens of the tokenizer the model lacks, if any. `speculation` is the configuration at loading.
    `vision` has the family that prepares images, or the reason for none. `identity` was read with
    the weights. `cost_model` has measured costs of passes. A model that does not `generate` is an
    encoder.
    """

    id: str
    tokenizer: Tokenizer
    token_bytes: TokenBytes
    vocab_size: int
    context_length: int
    stop_ids: frozenset[int]
    sampling: Mapping[str, float]
    draft: str | None
    no_draft_reason: Reason | None
    head_kind: str = MTP
    draft_kind: str = "draft"
    missing: Mapping[str, Reason] = field(default_factory=dict)
    off_reason: Reason | None = None
    narrow: Reason | None = None
    kv_cache: KVCacheFacts = field(default_factory=KVCacheFacts)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    vision: VisionSupport = field(default_factory=VisionSupport)
    identity: ModelIdentity = field(default_factory=ModelIdentity)
    generates: bool = True
    cost_model: CostModel = field(default_factory=CostModel)
    grammars: GrammarCompiler = field(init=False)
    thinking: ThinkingBudgets = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammars", GrammarCompiler(self.tokenizer, self.stop_ids))
        thinking = ThinkingBudgets(self.tokenizer, self.token_bytes, self.vocab_size)
        object.__setattr__(self, "thinking", thinking)

    @property
    def exactness(self) -> ExactnessClaim:
        """Current claim for answers; exactness may be measured while serving."""
        settings, measured = self.speculation.settings, self.cost_model.exactness
        return ExactnessClaim(settings.exactness == STRICT and self.generates, measured)

    @property
    def draft_failed(self) -> bool:
        """True if the draft, compatible by files, could not be loaded or run."""
        return (
            self.no_draft_reason is not None
            and self.no_draft_reason.code == "spec.off.draft_failed"
        )


def log_loaded(served: ServedModel) -> None:
    fields = {"model": served.id}
    if served.narrow is not None:
        log.warning(served.narrow.message, extra={"fields": fields})
    if served.kv_cache.reason is not None:
        log.warning(served.kv_cache.reason.message, extra={"fields": fields})
    blind = served.vision.off_reason
    if blind is not None and blind.code not in ("vision.off.text", "vision.off.setting"):
        log.warning(blind.message, extra={"fields": fields})
    if served.draft is not None:
        fields["draft"] = served.draft
    log.info("loaded", extra={"fields": fields})


class Lease:
    """Right to send requests to a model until `release`, which may be called repeatedly."""

    def __init__(self, served: ServedModel, give_back: Callable[[], None]) -> None:
        self.served = served
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


@dataclass(slots=True, eq=False)
class ResidentModel:
    """One model in memory with its draft.

    `weights` are by model directory, and may be shared with other residents. `limits` and `dtype`
    are those at loading. `drains` counts the tasks waiting for the model to drain. `keep_s` is a
    client's idle time-out in seconds, replacing the configured one.
    """

    entry: ModelEntry
    served: ServedModel
    loop: EngineLoop
    limits: Limits
    dtype: Dtype
    weights: dict[Path, LoadedModel]
    costs: LoadedCosts
    used_at: float
    leases: int = 0
    drains: int = 0
    keep_s: float | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def settings(self) -> Settings:
        return self.served.speculation.settings

    @property
    def pinned(self) -> bool:
        return self.settings.pinned

    @property
    def ttl_s(self) -> float | None:
        """Seconds — idle time-out in effect, None without one."""
        if self.pinned:
            return None
        return self.settings.ttl_seconds if self.keep_s is None else self.keep_s

    @property
    def stages(self) -> tuple[StageStatus, ...]:
        """Stages of a model over several machines, by rank; else empty."""
        target = self.weights.get(self.entry.path)
        if target is None or target.stage is None:
            return ()
        return target.stage.statuses()

    @property
    def draining(self) -> bool:
        return self.drains > 0

    def has_draft(self, draft: ModelEntry | None) -> bool:
        """Return whether `draft` is the loaded draft; None matches any."""
        return draft is None or draft.id == self.served.draft

    def accepts(self, draft: ModelEntry | None) -> bool:
        return not self.draining and self.has_draft(draft)

    def lease(self, clock: Callable[[], float]) -> Lease:
        self.leases += 1
        self.used_at = clock()
        self.idle.clear()

        def give_back() -> None:
            self.leases -= 1
            self.used_at = clock()
            if self.leases == 0:
                self.idle.set()

        return Lease(self.served, give_back)

    async def wait_idle(self) -> None:
        """Wait until no request is active. New requests are still accepted meanwhile."""
        while self.leases:
            await self.idle.wait()

    @contextmanager
    def drain(self) -> Iterator[None]:
        """Accept no new requests inside the block. Blocks may overlap."""
        self.drains += 1
        try:
            yield
        finally:
            self.drains -= 1

    def expired(self, now: float) -> bool:
        timeout = self.ttl_s
        if timeout is None or self.leases:
            return False
        return now - self.used_at >= timeout

    def can_keep_weights(self, settings: Settings) -> bool:
        target = self.weights.get(self.entry.path)
        return settings.dtype == self.dtype and (target is None or target.follows(settings))

    def can_keep_loop(self, speculation: SpeculationConfig, limits: Limits) -> bool:
        """Return whether changed settings take effect without building a new engine loop.

        The draft length may differ: each request carries it. A draft that failed is tried again.
        """
        current = self.served.speculation
        return (
            not self.served.draft_failed
            and limits == self.limits
            and self.can_keep_weights(speculation.settings)
            and speculation.settings.kv_bits == self.settings.kv_bits
            and speculation.active_draft == current.active_draft
            and speculation.no_draft_reason == current.no_draft_reason
        )


def limits_of(speculation: SpeculationConfig, target: LoadedModel) -> Limits:
    """Return the limits of a model with these settings.

    The budget of its prefix cache is set later, when it shares memory with other models.
    """
    settings = speculation.settings
    longest = max(target.longest_context, target.context_length)
    return Limits(
        context_length=min(longest, settings.max_context or target.context_length),
        max_rows=settings.max_concurrent_requests,
        max_waiting=settings.max_waiting,
        prefill_chunk=settings.prefill_chunk,
        pause_s=settings.prefill_pause / 1000,
        prefix_bytes=0,
        generates=target.generates,
        strict=settings.exactness == STRICT and target.generates,
    )


def speculation_to_json(
    speculation: SpeculationConfig, served: ServedModel | None = None
) -> dict[str, object]:
    """Return the configuration and its effect on `served`, the model if loaded.

    `source` says who set the strategy, `sources` who set each setting; `draft` is the draft in use
    or, while the model is not loaded, the draft to load; `reason` says why there is none. `head` is
    the trained drafter of the loaded model.
    """
    draft = speculation.active_draft.id if speculation.active_draft is not None else None
    reason, head = speculation.no_draft_reason, None
    if served is not None:
        draft, reason, kind = served.draft, served.no_draft_reason, served.head_kind
        missing = served.missing.get(kind)
        head = {"kind": kind, "loaded": missing is None, "reason": optional_reason(missing)}
    draft_length, wanted = speculation.draft_length, speculation.missing_draft
    sources = speculation.sources
    return {
        "configured": str(speculation.strategy),
        "source": sources["speculation"].value,
        "sources": {
            name: sources[name].value
            for name, row in table().items()
            if row.meta.group is Group.SPECULATION and sources[name] is not Source.BUILT_IN
        },
        "draft": draft,
        "draft_configured": speculation.settings.draft_model,
        "draft_source": sources["draft_model"].value,
        "window": {
            "initial": draft_length.initial,
            "min": draft_length.min,
            "max": draft_length.max,
            "adaptive": draft_length.fixed is None,
        },
        "reason": optional_reason(reason),
        "head": head,
        "wanted": None
        if wanted is None
        else {
            "repository": wanted.reference.repository,
            "revision": wanted.reference.revision,
            "size_bytes": wanted.size_bytes,
            "fetching": wanted.fetching,
            "failed": optional_reason(wanted.failed),
        },
        "draft_download": speculation.settings.draft_download,
        "warnings": [warning.to_json() for warning in speculation.warnings],
    }
