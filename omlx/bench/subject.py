"""What is measured: a model, its draft, and the prompts as its tokenizer writes them."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm import load
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache

from omlx.bench.inflate import flat, inflate, parameters
from omlx.bench.prompts import encode
from omlx.bench.result import Json
from omlx.engine.build import build_loop
from omlx.engine.limits import Limits
from omlx.engine.loop import EngineLoop

GROUP: Final = 64
"""Weights that share a scale, when quantized."""


@dataclass(frozen=True)
class Subject:
    """`stop_ids` end an answer; `vocab_size` is the tokenizer's length; `names` are the folders of model and draft."""

    model: Any
    draft: Any | None
    vocab_size: int
    stop_ids: frozenset[int]
    prompts: Seq[tuple[int, ...]]
    names: tuple[str, ...] = ("model", "draft")
    tokenizer: Any = None

    @cached_property
    def loop(self) -> EngineLoop:
        """The engine that serves it. It keeps no prefixes: every run computes its prompts anew."""
        return self.new_loop(prefix_bytes=0)

    def new_loop(self, prefix_bytes: int) -> EngineLoop:
        """An engine of one's own, which keeps so much of the prompts that it has read."""
        limits = Limits(context_length=1 << 20, max_rows=64, prefix_bytes=prefix_bytes)
        return build_loop(self.model, self.vocab_size, limits, draft=self.draft)

    @cached_property
    def mlx_lm_speculates(self) -> bool:
        """Whether mlx-lm can verify drafts with this model: it needs every layer to trim."""
        return bool(can_trim_prompt_cache(make_prompt_cache(self.model)))

    def describe(self) -> Json:
        models = {"model": self.model, "draft": self.draft}
        pairs = zip(models.items(), self.names, strict=True)
        return {role: _describe(model, name) for (role, model), name in pairs if model is not None}


def read_subject(
    model_dir: Path,
    draft_dir: Path | None,
    *,
    dtype: str | None = None,
    inflate_to: int = 0,
    inflate_draft: bool = False,
    workload: str = "edit",
    bits: int | None = None,
) -> Subject:
    """Load a model and its draft.

    `dtype` (float32, bfloat16, …) converts both; `inflate_to` is a number of parameters, 0 for as they are, and
    `inflate_draft` grows the draft by the same factor; `bits` quantizes the weights of both. Raises ValueError if the
    draft speaks another vocabulary.
    """
    model, tokenizer, *_ = load(str(model_dir))
    vocab = tokenizer.get_vocab()
    draft = None
    if draft_dir is not None:
        draft, draft_tokenizer, *_ = load(str(draft_dir))
        if draft_tokenizer.get_vocab() != vocab:
            raise ValueError(
                f"{draft_dir} has another vocabulary than {model_dir}: it cannot draft for it"
            )
    trained = parameters(model)
    for each in (model, draft):
        if each is not None and dtype is not None:
            each.set_dtype(getattr(mx, dtype))
    inflate(model, inflate_to)
    if draft is not None and inflate_draft:
        inflate(draft, parameters(draft) * parameters(model) // trained)
    for each in (model, draft):
        if each is not None and bits is not None:
            _quantize(each, bits)
    mx.eval(model.parameters(), {} if draft is None else draft.parameters())
    return Subject(
        model=model,
        draft=draft,
        vocab_size=max(vocab.values()) + 1,
        stop_ids=frozenset(tokenizer.eos_token_ids),
        prompts=encode(tokenizer, workload),
        names=(model_dir.name, draft_dir.name if draft_dir else ""),
        tokenizer=tokenizer,
    )


def _quantize(model: Any, bits: int) -> None:
    """In groups of 64 weights, where a matrix divides into them."""
    nn.quantize(
        model,
        group_size=GROUP,
        bits=bits,
        class_predicate=lambda _, module: (
            hasattr(module, "to_quantized") and module.weight.shape[-1] % GROUP == 0
        ),
    )


def _describe(model: Any, name: str) -> Json:
    return {
        "name": name,
        "architecture": type(model).__module__.rpartition(".")[2],
        "parameters": parameters(model),
        "layers": len(model.layers),
        "dtype": sorted({str(array.dtype).removeprefix("mlx.core.") for _, array in flat(model)}),
    }
