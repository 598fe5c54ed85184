"""PyTorch versions of mlx-lm's ``llama`` and ``lfm2``: same arithmetic and weight names.

Both are built from the dict that is written as config.json, and map tokens [rows, length] to
logits [rows, length, vocabulary].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training import copying
from training.tokenizer import END_OF_TEXT, IM_END, MAX_POSITIONS, VOCAB_SIZE

Config = dict[str, Any]

_SHARED: Config = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": MAX_POSITIONS,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": IM_END,
    "pad_token_id": END_OF_TEXT,
    "torch_dtype": "bfloat16",
}


def _llama(width: int, layers: int, heads: int, kv_heads: int, feed_forward: int) -> Config:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width // heads,
        "intermediate_size": feed_forward,
        "rms_norm_eps": 1e-5,
        **_SHARED,
    }


def _lfm2(
    width: int, layer_types: list[str], heads: int, kv_heads: int, feed_forward: int
) -> Config:
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "hidden_size": width,
        "num_hidden_layers": len(layer_types),
        "layer_types": layer_types,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": width,
        "block_ff_dim": feed_forward,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        **_SHARED,
    }


CONV, FULL = "conv", "full_attention"
CONFIGS: dict[str, Config] = {
    "target": _llama(width=256, layers=8, heads=4, kv_heads=2, feed_forward=384),
    "hybrid": _lfm2(
        256, [CONV, CONV, FULL, CONV, FULL, CONV, FULL], heads=4, kv_heads=2, feed_forward=320
    ),
    # Copying needs two layers: one looks back a token, the next attends to what followed it.
    "draft": _llama(width=192, layers=2, heads=3, kv_heads=3, feed_forward=160),
}


def build(config: Config) -> nn.Module:
    """Return a newly initialised model for ``config``."""
    model: nn.Module = Llama(config) if config["model_type"] == "llama" else Lfm2(config)
    depth = config["num_hidden_layers"]
    for name, weight in model.named_parameters():
        if weight.ndim >= 2:
            nn.init.normal_(weight, std=0.02)
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "w2.weight")):
            weight.data.div_((2 * depth) ** 0.5)
        if name.endswith("conv.conv.weight"):
            nn.init.uniform_(weight, -0.6, 0.6)
    start_copying(model, config)
    return model


@torch.no_grad()
def start_copying(model: nn.Module, config: Config) -> None:
    """Write the copying circuit into initial weights: codes in the first layer, matches in the next
    attention layers.
    """
    layout = copying.new_layout(model.model.embed_tokens.weight)
    first, *later = model.model.layers
    if isinstance(first, LlamaLayer):
        copying.look_back(first.self_attn, layout, config["rope_theta"])
    else:
        copying.shift(first.conv, layout)
    start = 1  # after the constant
    for layer in later:
        attends = isinstance(layer, LlamaLayer) or layer.kind == FULL
        if attends and start < layout.content_end:
            start = copying.match(layer.self_attn, layout, start)


def count_parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotary_tables(length: int, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [length, dim], for rotation of the two halves of a head."""
    frequencies = theta ** (-torch.arange(0, dim, 2) / dim)
    angles = torch.arange(length)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-right, left], dim=-1) * sin.to(x.dtype)


class Past:
    """Keys and values of the inputs so far, by attention layer: [rows, heads, length, dim]."""

    def __init__(self) -> None:
        self._held: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: nn.Module, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of the next inputs; return all."""
        if layer in self._held:
            held_keys, held_values = self._held[layer]
            keys = torch.cat([held_keys, keys], dim=2)
            values = torch.cat([held_values, values], dim=2)
        self._held[layer] = keys, values
        return keys, values


@dataclass(frozen=True, slots=True)
class Places:
    """Where the inputs of attention stand, if not one behind the other: ``positions`` [length] and
    ``mask`` [length, keys], True where a row attends to a column. ``past`` holds keys and values of
    earlier inputs, which come first, and takes these.
    """

    positions: Tensor
    mask: Tensor
    past: Past | None = None


class Attention(nn.Module):
    """Grouped-query attention; ``normed`` puts a norm on each head's queries and keys, as lfm2
    does.
    """

    def __init__(self, config: Config, normed: bool) -> None:
        super().__init__()
        width, self.heads, self.kv_heads = (
            config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
        )
        self.dim = width // self.heads
        self.q_proj = linear(width, width)
        self.k_proj = linear(width, self.kv_heads * self.dim)
        self.v_proj = linear(width, self.kv_heads * self.dim)
        self.normed = normed
        if normed:
            self.q_layernorm = RMSNorm(self.dim, config["norm_eps"])
            self.k_layernorm = RMSNorm(self.dim, config["norm_eps"])
            self.out_proj = linear(width, width)
        else:
            self.o_proj = linear(width, width)
        cos, sin = rotary_tables(config["max_position_embeddings"], self.dim, config["rope_theta"])
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor, places: Places | None = None) -> Tensor:
        rows, length, _ = x.shape
        at = slice(length) if places is None else places.positions
        queries = self.q_proj(x).view(rows, length, self.heads, self.dim)
        keys = self.k_proj(x).view(rows, length, self.kv_heads, self.dim)
        values = self.v_proj(x).view(rows, length, self.kv_heads, self.dim).transpose(1, 2)
        if self.normed:
            queries, keys = self.q_layernorm(queries), self.k_layernorm(keys)
        cos, sin = self.cos[at].to(queries.dtype), self.sin[at].to(queries.dtype)
        queries = rotate(queries.transpose(1, 2), cos, sin)
        keys = rotate(keys.transpose(1, 2), cos, sin)
        if places is not None and places.past is not None:
            keys, values = places.past.extend(self, keys, values)
        repeats = self.heads // self.kv_heads
        if repeats > 1:
            keys, values = (
                keys.repeat_interleave(repeats, dim=1),
                values.repeat_interleave(repeats, dim=1),
            )
        mask = None if places is None else places.mask
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=places is None
        )
        mixed = mixed.transpose(1, 2).reshape(rows, length, -1)
        return self.out_proj(mixed) if self.normed else self.o_proj(mixed)


class ShortConv(nn.Module):
    """Gated depthwise causal convolution over ``conv_L_cache`` tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, taps = config["hidden_size"], config["conv_L_cache"]
        self.in_proj = linear(width, 3 * width)
        self.out_proj = linear(width, width)
        self.conv = nn.Conv1d(width, width, taps, groups=width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, out_gate, signal = self.in_proj(x).chunk(3, dim=-1)
        signal = gate * signal
        # Shifted products are faster than conv1d with one channel per group on the CPU.
        taps = self.conv.weight[:, 0].to(signal.dtype)  # [width, taps], last tap = current token
        mixed = signal * taps[:, -1]
        for back in range(1, taps.shape[1]):
            mixed = (
                mixed + F.pad(signal, (0, 0, back, 0))[:, : signal.shape[1]] * taps[:, -1 - back]
            )
        return self.out_proj(out_gate * mixed)


class LlamaMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(width, inner), linear(width, inner)
        self.down_proj = linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Lfm2MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = linear(width, inner), linear(width, inner)
        self.w2 = linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaLayer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.self_attn = Attention(config, normed=False)
        self.mlp = LlamaMLP(width, config["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(width, eps),
            RMSNorm(width, eps),
        )

    def forward(self, x: Tensor, places: Places | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), places)
        return x + self.mlp(self.post_attention_layernorm(x))


class Lfm2Layer(nn.Module):
    def __init__(self, config: Config, kind: str) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["norm_eps"]
        self.kind = kind
        if kind == FULL:
            self.self_attn = Attention(config, normed=True)
        else:
            self.conv = ShortConv(config)
        self.feed_forward = Lfm2MLP(width, config["block_ff_dim"])
        self.operator_norm, self.ffn_norm = RMSNorm(width, eps), RMSNorm(width, eps)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.operator_norm(x)
        x = x + (self.self_attn(normed) if self.kind == FULL else self.conv(normed))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.model.layers = nn.ModuleList(
            LlamaLayer(config) for _ in range(config["num_hidden_layers"])
        )
        self.model.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.hidden(tokens))

    def hidden(self, tokens: Tensor, pictures: Tensor | None = None) -> Tensor:
        """Return what the last layer puts out; pictures are not seen."""
        return self.through(self.model.embed_tokens(tokens))

    def through(self, x: Tensor, places: Places | None = None) -> Tensor:
        """Return what the layers make of embeddings [rows, length, width]."""
        for layer in self.model.layers:
            x = layer(x, places)
        return x

    @torch.no_grad()
    def continued(self, tokens: Tensor, length: int) -> Tensor:
        """Return tokens [rows, n] with sampled ones behind them, [rows, length]."""
        past, read = Past(), 0
        while tokens.shape[1] < length:
            end = tokens.shape[1]
            positions = torch.arange(read, end)
            places = Places(positions, positions[:, None] >= torch.arange(end), past)
            x = self.through(self.model.embed_tokens(tokens[:, read:]), places)
            chances = F.softmax(self.logits(x[:, -1]), dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
            read = end
        return tokens

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)


class Lfm2(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.model.layers = nn.ModuleList(Lfm2Layer(config, kind) for kind in config["layer_types"])
        self.model.embedding_norm = RMSNorm(config["hidden_size"], config["norm_eps"])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x)
        return F.linear(self.model.embedding_norm(x), self.model.embed_tokens.weight)
