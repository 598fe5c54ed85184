"""Draft head: layers of the target's own kind in mlx-lm, read from the files of a checkpoint.

    embedding of a token ─ norm ─┐
                                 fc ─ layers ─ norm ─► the target's output layer
    hidden state before it ─ norm ┘

| published                            | here                                     |
|--------------------------------------|------------------------------------------|
| `mtp.` before every name             | norms count from zero: one is added once |
| `experts.0.up_proj`, `experts.1.` …  | stacked as `switch_mlp.up_proj`          |
| `experts.gate_up_proj`               | split                                    |
| `fc.scales` beside `fc.weight`       | a quantized module, as the shapes say    |
| `draft_token_ids`                    | the ids that the head drafts, int32 [n]  |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen3_5, qwen3_next
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.utils import infer_quant_config

from omlx.engine.device.model import Cache, Model, architecture_of, cache_maker, parts_of
from omlx.engine.speculation.drafters.head import HeadDrafter, shortlist_bytes
from omlx.errors import ModelError, Reason
from omlx.models.catalog.drafters import PREFIX, SHORTLIST, HeadFiles, drafter_module
from omlx.models.pool.opening import Dtype, LoadProgress, cast_weights, head_refusal, read_weights

if TYPE_CHECKING:
    from omlx.models.pool.borrowed_drafters import BorrowedHead
    from omlx.models.pool.speculation import DraftChoice

    Head: TypeAlias = "HeadModule | BorrowedHead"

_SHIFTED: Final = frozenset({"qwen3_5", "qwen3_5_moe", "qwen3_next"})
"""Architectures whose published norms are stored minus 1."""

_UNUSED: Final = ("embed_tokens.", "lm_head.", "shared_head.head.")
"""Duplicates of the target's tensors."""


def _full_attention(args: Any) -> int:
    """Return the index of the first layer with full attention, and with experts if any."""
    step = args.full_attention_interval * max(1, getattr(args, "decoder_sparse_step", 1))
    return int(step) - 1


LAYERS: Final[dict[str, Callable[[Any], nn.Module]]] = {
    "llama": lambda args: llama.TransformerBlock(args),
    "qwen3_5": lambda args: qwen3_5.DecoderLayer(args, _full_attention(args)),
    "qwen3_5_moe": lambda args: qwen3_5.DecoderLayer(args, _full_attention(args)),
    "qwen3_next": lambda args: qwen3_next.Qwen3NextDecoderLayer(args, _full_attention(args)),
}
"""Constructors of a head's layer, by the target's module in mlx-lm."""


class HeadModule(nn.Module):
    """A `Head` of `count` decoder layers for a target of `architecture` with `args`.

    `draft_token_ids` [n] restricts the drafted ids; None: all.
    """

    def __init__(self, architecture: str, args: Any, count: int = 1) -> None:
        nn.Module.__init__(cast(Any, self))  # mlx has no types for its own
        width, eps = args.hidden_size, args.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = [LAYERS[architecture](args) for _ in range(count)]
        self.norm = nn.RMSNorm(width, eps=eps)
        self.draft_token_ids: mx.array | None = None

    def __call__(self, embedded: mx.array, hidden: mx.array, cache: Cache) -> mx.array:
        """Return hidden states [1, tokens, D] of the pairs; appends to the cache."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(mx.concatenate(pair, axis=-1))
        mask = create_attention_mask(x, cast(Any, cache[0]))
        for layer, held in zip(self.layers, cache, strict=True):
            x = cast(Any, layer)(x, mask=mask, cache=held)
        normed: mx.array = self.norm(x)
        return normed

    def make_cache(self) -> Cache:
        return [KVCache() for _ in self.layers]


def head_bytes(files: HeadFiles, target: Model) -> int:
    """Return a head's bytes in memory, with the output rows of its shortlist."""
    parts = parts_of(target)
    return files.nbytes + (0 if parts is None else shortlist_bytes(files.draft_ids, parts.output))


def head_steps(
    files: HeadFiles, target: Model, dtype: Dtype
) -> Generator[LoadProgress, None, Head]:
    """Read a drafter of `target` in steps on the engine thread; return it. Raises ModelError."""
    head = open_head(files, target)
    module = head if isinstance(head, HeadModule) else head.module
    if not any(isinstance(part, nn.QuantizedLinear) for part in module.modules()):
        cast_weights(module, {}, dtype)
    yield from read_weights(module)
    return head


def heads_by_kind(
    choice: DraftChoice, target: Model, vocab_size: int, head: Head | Reason
) -> dict[str, HeadDrafter | Reason]:
    """Return the drafter of the chosen or own head, or the reason, by kind. Runs short passes."""
    own, kind = HeadDrafter.kind, choice.head_kind
    name = kind if choice.head is None else choice.head.id
    made = head if isinstance(head, Reason) else head_drafter(name, target, vocab_size, head)
    return {own: Reason("spec.off.head_unused", {"draft": name}), kind: made}


def head_drafter(name: str, target: Model, vocab_size: int, head: Head) -> HeadDrafter | Reason:
    """Return the drafter of a head, called `name`, or a reason. Runs short passes."""
    if not isinstance(head, HeadModule):
        from omlx.models.pool.borrowed_drafters import drafter_of  # noqa: PLC0415 — needs mlx-vlm

        return drafter_of(name, head, target, vocab_size)
    ids, make_cache = head.draft_token_ids, cache_maker(target)
    return HeadDrafter.of(name, head, target, make_cache, vocab_size, ids)


def open_head(files: HeadFiles, target: Model) -> Head:
    """Return a drafter with lazy weights for `target`. Raises ModelError."""
    parts = parts_of(target)
    if parts is None or drafter_module(files.config) is None:
        return build_head(files, target)
    from omlx.models.pool.borrowed_drafters import open_drafter  # noqa: PLC0415 — needs mlx-vlm

    named = _read(replace(files, prefix=""), unused=())  # by the module's own names
    head, tensors = open_drafter(files.config, named, parts, within=files.within)
    _load(head.module, tensors)
    return head


def build_head(files: HeadFiles, target: Model) -> HeadModule:
    """Return a head of mlx-lm's layers, with lazy weights. Raises ModelError."""
    architecture, parts = architecture_of(target).removeprefix("mlx_lm.models."), parts_of(target)
    if architecture not in LAYERS or parts is None:
        family = architecture.rpartition(".")[2]
        raise ModelError("spec.off.head_unsupported", model_type=family)
    tensors = _named(_read(files), shifted=files.prefix == PREFIX and architecture in _SHIFTED)
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if len(layers) > 1 and architecture in _SHIFTED:
        raise head_refusal(f"{len(layers)} layers, where only heads of one are known")
    head = HeadModule(architecture, parts.text.args, max(1, len(layers)))
    head.draft_token_ids = tensors.get(SHORTLIST)
    _load(head, tensors)
    return head


def _load(head: nn.Module, tensors: dict[str, mx.array]) -> None:
    """Load tensors, into quantized modules where there are scales."""

    def form(path: str, module: nn.Module) -> bool | dict[str, Any]:
        scaled = f"{path}.scales" in tensors
        return infer_quant_config(path, module, tensors) if scaled else False

    try:
        nn.quantize(head, class_predicate=form)
        head.load_weights([*tensors.items()])
    except (KeyError, ValueError) as error:  # names or shapes of other layers
        raise head_refusal(error) from error


def _read(files: HeadFiles, unused: tuple[str, ...] = _UNUSED) -> dict[str, mx.array]:
    """Return the lazy tensors of a head, by name without the prefix."""
    tensors: dict[str, mx.array] = {}
    for file, names in files.names.items():
        held = cast(dict[str, mx.array], mx.load(str(file)))
        for name in names:
            short = name.removeprefix(files.prefix)
            if not short.startswith(unused):
                tensors[short] = held[name]
    return tensors


def _named(tensors: Mapping[str, mx.array], *, shifted: bool) -> dict[str, mx.array]:
    """Return tensors under mlx-lm's names, with stacked experts and norms around 1."""
    named: dict[str, mx.array] = {}
    experts: dict[str, dict[int, mx.array]] = defaultdict(dict)
    for name, tensor in tensors.items():
        before, expert, behind = name.partition(".experts.")
        number, _, part = behind.partition(".")
        if not expert:
            is_norm = tensor.ndim == 1 and "norm" in name and name.endswith(".weight")
            named[name] = tensor + 1.0 if shifted and is_norm else tensor
        elif number.isdecimal():
            experts[f"{before}.switch_mlp.{part}"][int(number)] = tensor
        elif behind == "gate_up_proj":
            gate, up = mx.split(tensor, 2, axis=-2)
            named[f"{before}.switch_mlp.gate_proj.weight"] = gate
            named[f"{before}.switch_mlp.up_proj.weight"] = up
        else:
            named[f"{before}.switch_mlp.{behind}.weight"] = tensor
    for name, parts in experts.items():
        named[name] = mx.stack([parts[number] for number in sorted(parts)])
    return named
