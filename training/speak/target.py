"""SmolLM2 in PyTorch: weights of a folder that `omlx pull smollm2` made, and its passes.

Weights are float32, or packed by mlx's affine quantization with scales and biases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from training.models import rotary_tables, rotate

Config = dict[str, Any]
Weights = dict[str, Tensor]


def read_folder(folder: Path) -> tuple[Config, Weights]:
    """Return the config and the float32 weights of a converted model."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights: Weights = {}
    for file in sorted(folder.glob("model*.safetensors")):
        weights |= load_file(file)
    for name in [name for name in weights if name.endswith(".scales")]:
        module = name.removesuffix(".scales")
        scales, biases = weights.pop(name), weights.pop(f"{module}.biases")
        packed = weights[f"{module}.weight"]
        weights[f"{module}.weight"] = unpack(packed, scales, biases)
    return config, {name: weight.float() for name, weight in weights.items()}


def unpack(packed: Tensor, scales: Tensor, biases: Tensor, group: int = 32) -> Tensor:
    """Return values [rows, columns] of packed codes [rows, words]: code x scale + bias."""
    words = packed.view(torch.int32)
    bits = words.shape[-1] * 32 // (scales.shape[-1] * group)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    codes = (words[..., None] >> shifts) & (2**bits - 1)
    codes = codes.reshape(*scales.shape, group).float()
    values = codes * scales.float()[..., None] + biases.float()[..., None]
    return values.reshape(packed.shape[0], -1)


def rotations(config: Config, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [length, head width] of rotary embeddings."""
    cos, sin = rotary_tables(length, config["head_dim"], config["rope_theta"])
    return cos.to(device), sin.to(device)


class Target:
    """The frozen model. `embeddings` [vocabulary, width] are the rows of its output layer too."""

    def __init__(self, config: Config, weights: Weights, device: torch.device, dtype: torch.dtype):
        self.config, self.device, self.dtype = config, device, dtype
        self.width, self.eps = config["hidden_size"], config["rms_norm_eps"]
        self.heads, self.kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config["head_dim"]
        held = {name: weight.to(device, dtype) for name, weight in weights.items()}
        self.embeddings = held["model.embed_tokens.weight"]
        self.norm = held["model.norm.weight"]
        self.layers = []
        for i in range(config["num_hidden_layers"]):
            part = {k.removeprefix(f"model.layers.{i}."): v for k, v in held.items()}
            attention = [part[f"self_attn.{name}_proj.weight"] for name in "qkv"]
            mlp = [part[f"mlp.{name}_proj.weight"] for name in ("gate", "up")]
            self.layers.append(
                {
                    "attention_norm": part["input_layernorm.weight"],
                    "qkv": torch.cat(attention),
                    "o": part["self_attn.o_proj.weight"],
                    "mlp_norm": part["post_attention_layernorm.weight"],
                    "gate_up": torch.cat(mlp),
                    "down": part["mlp.down_proj.weight"],
                }
            )
        self.cos, self.sin = rotations(config, 8192, device)

    def relabel(self, order: Tensor) -> None:
        """Give token `order[i]` the id `i`."""
        self.embeddings = self.embeddings[order].contiguous()

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return hidden states behind the last norm, [rows, length, width]."""
        x = F.embedding(tokens, self.embeddings)
        rows, length = tokens.shape
        cos, sin = self.cos[:length], self.sin[:length]
        for layer in self.layers:
            q, k, v = self._qkv(layer, x, cos, sin)
            k, v = (t.repeat_interleave(self.heads // self.kv, dim=1) for t in (k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self._rest(layer, x, mixed.transpose(1, 2).reshape(rows, length, -1))
        return F.rms_norm(x, (self.width,), self.norm, self.eps)

    @torch.no_grad()
    def states(self, tokens: Tensor) -> Tensor:
        """Return hidden states of texts of any number, without gradients."""
        return torch.cat([self.hidden(part.long()) for part in tokens.split(16)])

    def step(self, tokens: Tensor, at: int, cache: Tensor) -> Tensor:
        """Return hidden states [rows, width] of tokens [rows] at position `at`.

        Appends to `cache`, [layers, 2, rows, kv heads, positions, head width]. Queries that share
        keys are computed as queries of one position, so that keys are not repeated.
        """
        x = F.embedding(tokens[:, None], self.embeddings)
        rows = len(tokens)
        cos, sin = self.cos[at : at + 1], self.sin[at : at + 1]
        for layer, held in zip(self.layers, cache, strict=True):
            q, k, v = self._qkv(layer, x, cos, sin)
            held[0, :, :, at], held[1, :, :, at] = k[:, :, 0], v[:, :, 0]
            q = q.reshape(rows, self.kv, self.heads // self.kv, self.dim)
            keys, values = held[0, :, :, : at + 1], held[1, :, :, : at + 1]
            mixed = F.scaled_dot_product_attention(q, keys, values)
            x = self._rest(layer, x, mixed.reshape(rows, 1, -1))
        return F.rms_norm(x[:, 0], (self.width,), self.norm, self.eps)

    def new_cache(self, rows: int, length: int) -> Tensor:
        shape = (len(self.layers), 2, rows, self.kv, length, self.dim)
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def _qkv(self, layer: Weights, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        normed = F.rms_norm(x, (self.width,), layer["attention_norm"], self.eps)
        both = F.linear(normed, layer["qkv"]).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        turned = rotate(both[:, : self.heads + self.kv], cos, sin)
        return turned[:, : self.heads], turned[:, self.heads :], both[:, self.heads + self.kv :]

    def _rest(self, layer: Weights, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + F.linear(mixed, layer["o"])
        normed = F.rms_norm(x, (self.width,), layer["mlp_norm"], self.eps)
        gate, up = F.linear(normed, layer["gate_up"]).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer["down"])
