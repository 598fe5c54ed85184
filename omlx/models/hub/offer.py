"""Offers: models to download, with size, quantization, draft, and memory fit.

Config fields give an estimate of the KV cache, measured once loaded. First models and drafts by
family are data in suggestions.json, with sizes at the time of writing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Final

from omlx.engine.memory import HARD
from omlx.engine.piece import Layout
from omlx.errors import Reason
from omlx.models.catalog.config import declared_context, text_config, whole_number

_BESIDE_A_MODEL: Final = ("model.drafter", "model.drafter_extra", "model.head_only")
"""Reasons of folders that are useful beside a model alone."""


@dataclass(frozen=True, slots=True)
class Companion:
    """Draft model or head downloaded along; `declared` by the model's package."""

    model: str
    download_bytes: int = 0
    weight_bytes: int = 0
    declared: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Model to download: `model` is a reference, `context_length` in tokens; None: unknown.

    `reason` says why the model is unusable, or why the hub refuses it.
    """

    model: str
    download_bytes: int = 0
    weight_bytes: int = 0
    quantization: str | None = None
    model_type: str | None = None
    context_length: int | None = None
    layout: Layout = Layout(0)  # noqa: RUF009 — frozen
    parameters: int | None = None
    downloads: int | None = None
    modified: str | None = None
    companion: Companion | None = None
    reason: Reason | None = None

    @property
    def repository(self) -> str:
        return self.model.partition("@")[0].partition(":")[0]

    @property
    def downloadable(self) -> bool:
        """Whether a download is useful; a trained drafter is, beside its model."""
        return self.reason is None or self.reason.code in _BESIDE_A_MODEL

    @property
    def on_hub(self) -> bool:
        """Whether the model is on the hub; otherwise a package, small enough to answer at once."""
        return "/" in self.repository

    def fit(self, limit_bytes: int) -> Fit:
        """Return the fit into `limit_bytes` of memory, companion included."""
        weights = self.weight_bytes
        if self.companion is not None:
            weights += self.companion.weight_bytes
        return fit(weights, self.layout, self.context_length, limit_bytes)


CONTEXTS: Final = (65_536, 32_768, 16_384, 8_192, 4_096)
"""Tokens — contexts to try, the longest first."""

COMFORTABLE: Final = 16_384
"""Tokens — enough context for long conversations and agents."""

_VALUE_BYTES: Final = 2
"""Bytes per KV-cache element (bfloat16, float16)."""
_SLIDING: Final = ("sliding_attention", "sliding_window", "chunked_attention")
_RECURRENT: Final = ("linear_attention", "conv", "recurrent", "mamba")


@dataclass(frozen=True, slots=True)
class Fit:
    """The longest context of `CONTEXTS`, in tokens, that fits, and the memory left then.

    `context` is None if the weights or the shortest context do not fit; `comfortable`: the context
    is the model's own, or at least `COMFORTABLE`.
    """

    context: int | None
    left_bytes: int = 0
    comfortable: bool = False


def fit(weight_bytes: int, layout: Layout, longest: int | None, limit_bytes: int) -> Fit:
    """Return the fit below the hard memory limit; `longest` is the model's context length."""
    for tokens in CONTEXTS:
        context = min(tokens, longest or tokens)
        need = weight_bytes + layout.cache_bytes(context)
        if need <= HARD * limit_bytes:
            return Fit(context, limit_bytes - need, context >= min(COMFORTABLE, longest or tokens))
    return Fit(None)


def layout_of_config(config: Mapping[str, Any]) -> Layout:
    """Estimate the bytes of a KV cache from common config fields.

    Recurrent states are omitted: small compared to the rows. Missing fields and those of another
    type count as 0.
    """
    text = text_config(config) or config
    layers = whole_number(text, "num_hidden_layers", "n_layer")
    row = _row_bytes(text)
    kinds = _kinds(text, layers)
    window = whole_number(text, "sliding_window") or None
    sliding = sum(kind in _SLIDING for kind in kinds)
    recurrent = sum(kind in _RECURRENT for kind in kinds)
    if window is None:
        sliding = 0
    return Layout((layers - sliding - recurrent) * row, sliding * row, window)


def _row_bytes(text: Mapping[str, Any]) -> int:
    """Bytes per token in one attention layer."""
    rank = whole_number(text, "kv_lora_rank")
    if rank:  # multi-head latent attention keeps one compressed vector
        return _VALUE_BYTES * (rank + whole_number(text, "qk_rope_head_dim"))
    queries = whole_number(text, "num_attention_heads", "n_head")
    heads = whole_number(text, "num_key_value_heads") or queries
    width = whole_number(text, "hidden_size", "n_embd")
    dim = whole_number(text, "head_dim") or width // max(1, queries)
    return 2 * _VALUE_BYTES * heads * dim


def _kinds(text: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of each layer, if named by the config."""
    named = text.get("layer_types")
    if isinstance(named, list):
        return [str(kind) for kind in named[:layers]]
    interval = whole_number(text, "full_attention_interval")
    if interval:
        return _every(interval, layers, "linear_attention")
    pattern = whole_number(text, "sliding_window_pattern", "_sliding_window_pattern")
    if pattern:
        return _every(pattern, layers, "sliding_attention")
    return []


def _every(interval: int, layers: int, others: str) -> list[str]:
    """Return layer kinds where every `interval`-th layer has full attention."""
    return ["full_attention" if n % interval == 0 else others for n in range(1, layers + 1)]


COUNT: Final = 3
"""Hub models offered on an empty machine."""


def starters(limit_bytes: int, count: int = COUNT) -> list[Offer]:
    """Return the package's model and the `count` largest hub models that fit, smallest first."""
    first, *offers = (_offer(record) for record in (_data()["first"], *_data()["starters"]))
    fitting = [offer for offer in offers if offer.fit(limit_bytes).comfortable][-count:]
    return [first, *fitting] if first.fit(limit_bytes).comfortable else fitting


def known_draft(model: str) -> Companion | None:
    """Return the known draft of a model's family, None without one."""
    for pair in _data()["drafts"]:
        if any(fnmatch(model, target) for target in pair["targets"]):
            return Companion(pair["draft"], pair["bytes"], pair["bytes"])
    return None


def _offer(record: dict[str, Any]) -> Offer:
    config, size = record["config"], record["download_bytes"]
    return Offer(
        record["model"],
        download_bytes=size,
        weight_bytes=record.get("weight_bytes", size),
        quantization=record["quantization"],
        parameters=record.get("parameters"),
        model_type=config["model_type"],
        context_length=declared_context(config),
        layout=layout_of_config(config),
        companion=known_draft(record["model"]),
    )


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        Path(__file__).with_name("suggestions.json").read_text(encoding="utf-8")
    )
    return data
