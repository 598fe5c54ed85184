"""Drafters of mlx-vlm with random weights, beside the drafts that their own public calls make."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

from omlx.engine.device.model import cache_maker, parts_of
from omlx.engine.device.sampling import Draw, RowSampler, draw, process
from omlx.engine.speculation.drafters.head import HeadDrafter
from omlx.engine.step.row import Row
from omlx.models.pool.borrowed_drafters import BorrowedHead, drafter_of, open_drafter
from omlx.models.pool.opening import open_model
from tests import zoo
from tests.engine.harness import model
from tests.engine.heads import Watched
from tests.zoo.borrowed import CONFIGS as BORROWED
from tests.zoo.build import config_of, randomise
from tests.zoo.family import SMALL

LAYER = {**SMALL, "num_hidden_layers": 1, "model_type": "llama"}
BLOCK = {**SMALL, "num_hidden_layers": 2, "model_type": "qwen3", "block_size": 8}
INNER = {"mask_token_id": 95, "target_layer_ids": [0, 2], "num_target_layers": 3}
SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 12}
EAGLE: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": LAYER,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}
NEMOTRON = {
    **SMALL,
    **zoo.FAMILIES["nemotron_h"].config,
    "model_type": "nemotron_h",
    "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
GLM = {**config_of(zoo.FAMILIES["glm_moe_dsa"]), "model_type": "glm_moe_dsa"}
HEADS: dict[str, dict[str, Any]] = {
    name: {"model_type": f"{name}_mtp", "text_config": config.get("text_config", config)}
    for name, config in BORROWED.items()
    if name in ("deepseek_v4", "glm5_next")
} | {
    "nemotron_h": {"model_type": "nemotron_h_mtp", "text_config": NEMOTRON},
    "glm_moe_dsa": {"model_type": "glm_moe_dsa_mtp", "text_config": GLM},
}
"""By the family of the target."""
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle": {**EAGLE, "draft_vocab_size": 40},
    "eagle_whole": {**EAGLE, "draft_vocab_size": zoo.VOCAB_SIZE},
    "dflash": {**BLOCK, "architectures": ["DFlashDraftModel"], "dflash_config": INNER},
    "dflash2": {
        **BLOCK,
        "architectures": ["DFlash2DraftModel"],
        "num_target_layers": 3,
        "dflash_config": INNER | SELECTOR,
    },
    "dspark": {**BLOCK, "dflash_config": {**INNER, "projector_type": "dspark", "markov_rank": 8}},
}


def random_head(kind: str, family: str) -> BorrowedHead:
    """A drafter of random weights for the zoo's target of a family."""
    parts = parts_of(model(family))
    head, _ = open_drafter(HEADS[family] if kind == "mtp" else CONFIGS[kind], {}, parts)
    module: Any = head.module
    randomise(module, 3, 1.0)
    if getattr(module, "d2t", None) is not None:  # id i is i + d2t[i], at most 80
        module.d2t = mx.array([i % 3 + i for i in range(40)])
    mx.eval(module.parameters())
    return head


def weights_of(module: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def save_drafter(kind: str, name: str, folder: Path) -> None:
    """Replace the model of a family in `folder` by a random drafter for it."""
    target, saved, _ = open_model(folder, "float32", trusted=False)
    width = (saved.get("text_config") or saved)["vocab_size"]
    parts = parts_of(target)
    depth = len(parts.body.layers)
    config = _widened(HEADS[name] if kind == "mtp" else CONFIGS[kind], width)
    if kind == "eagle":
        config["eagle_aux_hidden_state_layer_ids"] = [1, depth // 2 + 1, depth]
    elif kind != "mtp":
        config |= {"num_target_layers": depth, "vocab_size": width}
        inner = {"num_target_layers": depth, "target_layer_ids": [0, depth - 1]}
        config["dflash_config"] |= inner
    module = open_drafter(config, {}, parts)[0].module
    randomise(module, 3, 1.0)
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights_of(module))


def _widened(config: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """Copy a config, with another vocabulary in every part that states one."""
    copied = json.loads(json.dumps(config))
    for part in (copied, *(part for part in copied.values() if isinstance(part, dict))):
        if "vocab_size" in part:
            part["vocab_size"] = vocab_size
    return copied


def watched(kind: str, family: str) -> Watched:
    """A drafter of random weights, beside the drafts that its module's own calls make."""
    head = random_head(kind, family)
    drafter = drafter_of(head.kind, head, model(family), zoo.VOCAB_SIZE)
    return Watched(family, drafter, partial(_own_calls, family, head, drafter), compare_every=4)


def _own_calls(
    family: str, head: BorrowedHead, drafter: HeadDrafter, row: Row, n: int
) -> list[int] | None:
    """Draft as the module's public methods do, from the whole text."""
    if drafter._rows[row.id].first:
        return None
    tokens, module, body = list(row.tokens), head.module, drafter.parts.body
    states = body(mx.array([tokens[:-1]]), cache=cache_maker(model(family))())
    if head.layers:
        states = body.take()
    sampler = RowSampler(row.request.sampling, zoo.VOCAB_SIZE)
    sample = OwnSampler(sampler, len(tokens), module, drafter._head)
    if head.kind == "block":
        context = module.make_cache()
        return module.draft_block(tokens[-1], states, context, n + 1, sample)[0].tolist()
    module._cache, module._seed_token, module._seed_hidden = module.make_cache(), None, None
    module.prefill_from_target_hidden(mx.array([tokens[:-1]]), states, tokens[-1], sample)
    drafted = module.draft_block(tokens[-1], None, None, n + 1, sample)[0].tolist()
    module._cache = []
    return drafted


class OwnSampler:
    """The target's noise at consecutive positions, over what a module's own calls hand over."""

    def __init__(self, sampler: RowSampler, position: int, module: Any, head: Any) -> None:
        self._sampler = sampler
        self._position = position
        self._head = head
        d2t = getattr(module, "d2t", None)
        self._ids = None if d2t is None else mx.arange(d2t.size) + d2t

    def __call__(self, logits: mx.array) -> mx.array:
        if self._ids is not None:
            return mx.array([[self._among(logits.reshape(-1), self._ids)]])
        rows = logits.reshape(-1, logits.shape[-1])
        return mx.array([self._sample(row) for row in rows]).reshape(logits.shape[:-1])

    def sample_proposal(self, scores: mx.array) -> mx.array:
        return mx.array([self._among(scores[0], self._head.candidates.pop()[0])])

    def _among(self, scores: mx.array, ids: mx.array) -> int:
        """The place of the sampled id among `ids`, by their scores."""
        logits = [-float("inf")] * zoo.VOCAB_SIZE
        for token, score in zip(ids.tolist(), scores.tolist(), strict=True):
            logits[token] = score
        return ids.tolist().index(self._sample(mx.array(logits)))

    def _sample(self, logits: mx.array) -> int:
        place = Draw(self._sampler, self._position, None)
        self._position += 1
        logits = logits[None, : zoo.VOCAB_SIZE]
        return int(draw(process(logits, [place]), [place]).item())
