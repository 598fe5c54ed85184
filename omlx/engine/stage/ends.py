"""Cutting a model into stages: the layers that a rank keeps, and how hidden states travel.

Rank 0 keeps the last layers, rank size - 1 the first. The outermost layers of a stage receive and
send, so the model's own forward pass stays as it is. Only architectures of `STAGED` are cut:
elsewhere a body may choose masks by the number of a layer, and answers would be wrong without an
error.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from omlx.engine.device.model import Caller, architecture_of, tapped
from omlx.errors import ModelError, StageError

_BY_MLX_LM: Final = """
bailing_hybrid deepseek_v3 deepseek_v32 glm4_moe glm_moe_dsa kimi_k25 kimi_k3 minimax_m3_vl
ministral3 mistral4 qwen2 qwen3_5 qwen3_next solar_open
"""
PIPELINED: Final = frozenset(_BY_MLX_LM.split())
"""Cut by mlx-lm's own `pipeline()`, which also finds the layers of each kind that remain."""

_BY_LIST: Final = """
Klear afm7 apertus bailing_moe cohere deepseek dots1 ernie4_5 ernie4_5_moe gemma glm glm4 granite
granitemoe helium hunyuan_v1_dense internlm2 internlm3 llama mimo minicpm minimax mixtral nemotron
olmo2 olmoe phi phi3 phimoe qwen2_moe qwen3 seed_oss stablelm starcoder2
"""
STAGED: Final = PIPELINED | frozenset(_BY_LIST.split())
"""By module of mlx-lm: what tests/engine/stage proves. The rest is refused. Those that are not
`PIPELINED` have their list of layers shortened: to the body all layers are alike.
"""

_BY_SHARD: Final = """
deepseek_v2 deepseek_v3 deepseek_v32 exaone_moe glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss
iquestloopcoder kimi_k25 kimi_k3 llama longcat_flash longcat_flash_ngram minimax minimax_m3_vl
ministral3 mistral4 qwen2 qwen3 qwen3_5 qwen3_5_moe qwen3_moe solar_open step3p5
"""
SHARDED: Final = frozenset(_BY_SHARD.split())
"""By module of mlx-lm: what tests prove with a part of every layer on each rank."""

EVEN_ONLY: Final = frozenset({"kimi_k3"})
"""Modules whose `pipeline()` takes no split."""


def check_architecture(model: nn.Module, *, tensor: bool) -> None:
    """Raise ModelError for a model that is not proven to be right when it is cut in this way."""
    module = architecture(model)
    if tensor and module not in SHARDED:
        raise ModelError("stage.no_shard", architecture=module)
    more = getattr(_body(model), "use_attn_res", False)  # layers pass on more than hidden states
    if not tensor and (module not in STAGED or more):
        raise ModelError("stage.unsupported", architecture=module)


def check_heads(model: nn.Module, ranks: int) -> None:
    """Raise StageError if `ranks` cannot have equal numbers of attention heads: mlx-lm would round
    their number down.
    """
    for module in model.modules():
        for name, heads in vars(module).items():
            if name.endswith("heads") and isinstance(heads, int) and heads % ranks:
                raise StageError("stage.heads", heads=heads, ranks=ranks)


def check_split(model: nn.Module, counts: Sequence[int]) -> None:
    """Raise StageError if a rank could not have these layers: some models need one of each kind on
    every rank, some are split evenly only.
    """
    module = architecture(model)
    if module in PIPELINED:
        for rank in range(len(counts)):
            _pipeline(copy.copy(_body(model)), rank, counts, module)
        return
    # Layers that read what the last one of the list has kept stay with it.
    behind = sum(counts) - len(_body(model).layers)
    if counts[0] <= behind:
        detail = f"the first machine must hold more than {behind} layers"
        raise StageError("stage.split", detail=detail)


def span(counts: Sequence[int], rank: int) -> tuple[int, int]:
    """The layers [first, end) of a rank, of which the last one has the first layers."""
    end = sum(counts[rank:])
    return end - counts[rank], end


def place(model: nn.Module, rank: int, counts: Sequence[int]) -> Any:
    """Cut `model` to the stage of `rank`, in place; `counts` are layers by rank. Returns its body,
    which maps ids [rows, tokens] to hidden states [rows, tokens, D].

    The weights of other layers are dropped without being read, as long as they are lazy.
    """
    module = architecture(model)
    body = _body(model)
    first, _ = span(counts, rank)
    dtype = _hidden_type(body, first - 1) if first else None
    if module in PIPELINED:
        _pipeline(body, rank, counts, module)
        layers, start, stop = body.layers, body.start_idx, body.end_idx
    else:
        layers = body.layers = list(body.layers[slice(*span(counts, rank))])
        start, stop = 0, len(layers)
    if dtype is not None:
        layers[start] = Caller(layers[start], partial(_receive, rank + 1, dtype))
    if rank > 0:
        layers[stop - 1] = Caller(layers[stop - 1], partial(_send, rank - 1))
    return body


def _receive(
    source: int, dtype: mx.Dtype, layer: Any, x: mx.array, *args: Any, **kwargs: Any
) -> Any:
    """Apply a layer to hidden states that rank `source` sends, in the shape of `x`."""
    return layer(mx.distributed.recv_like(x.astype(dtype), source), *args, **kwargs)


def _send(target: int, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a layer, and send its hidden states to rank `target`."""
    out = layer(*args, **kwargs)
    if isinstance(out, tuple):
        return (mx.distributed.send(out[0], target), *out[1:])
    return mx.distributed.send(out, target)


def shard(model: Any, group: Any) -> None:
    """Reduce every layer of `model` to this rank's part, in place, by mlx-lm. `group` is mlx's.

    Raises StageError for weights that its ranks cannot share equally.
    """
    try:
        model.shard(group)
    except ValueError as error:
        detail = str(error).rstrip(".")
        raise StageError("stage.parts", ranks=group.size(), detail=detail) from error


def architecture(model: nn.Module) -> str:
    """The module of mlx-lm, by which models are listed in the tables."""
    return architecture_of(model).removeprefix("mlx_lm.models.")


def _body(model: Any) -> Any:
    inner = model.language_model if hasattr(model, "language_model") else model
    return inner.model


def _hidden_type(body: Any, layer: int) -> mx.Dtype:
    """The type of what a layer of the whole model passes on: weights of a wider type than the
    embedding's widen it. The pass that shows it is never computed.
    """
    with tapped(body.layers, [layer]) as outputs:
        body(mx.zeros((1, 1), mx.uint32), cache=None)
    return outputs[0][1].dtype


def _pipeline(body: Any, rank: int, counts: Sequence[int], module: str) -> None:
    """Have mlx-lm trim the layers. The rank that it stores is reset: layers send."""
    given = {} if module in EVEN_ONLY else {"split": list(counts)}
    group = SimpleNamespace(rank=lambda: rank, size=lambda: len(counts))  # as mlx's
    try:
        body.pipeline(group, **given)
    except ValueError as error:
        raise StageError("stage.split", detail=str(error)) from error
    if body.end_idx - body.start_idx != counts[rank]:
        raise StageError("stage.split", detail=f"{module} is split evenly only")
    body.pipeline_rank, body.pipeline_size = 0, 1
