"""The models that learn: a small llama, and heads on the target's hidden states.

Weights have the names of mlx-lm's llama and of Qwen's heads. Ids are ranks by frequency: a head
scores the most frequent tokens alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.models import RMSNorm, rotate
from training.speak.target import Config, Target, rotations

Bank = list[tuple[Tensor, Tensor]]
"""Keys and values of earlier passes, [rows, heads, length, head width] each."""


def linear(inputs: int, outputs: int, *, zero: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0 if zero else inputs**-0.5)
    return layer


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.dim = config["hidden_size"], config["head_dim"]
        queries, keys = config["num_attention_heads"], config["num_key_value_heads"]
        self.repeat = queries // keys
        self.q_proj = linear(width, queries * self.dim)
        self.k_proj = linear(width, keys * self.dim)
        self.v_proj = linear(width, keys * self.dim)
        self.o_proj = linear(queries * self.dim, width, zero=True)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], bank: Bank | None = None) -> Tensor:
        """Attend causally; with a `bank`, to what `chained` says, after appending to it."""
        rows, length, _ = x.shape
        split = (rows, length, -1, self.dim)
        q, k, v = (
            part(x).view(split).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, *turns), rotate(k, *turns)
        if self.repeat > 1:
            k, v = (part.repeat_interleave(self.repeat, dim=1) for part in (k, v))
        if bank is not None:
            bank.append((k, v))
        if bank is None or len(bank) == 1:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = chained(q, bank)
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))


def chained(q: Tensor, bank: Bank) -> Tensor:
    """Attend to entries of true states up to a query's own, and to those drafted behind that one.

    Of the latter each query has one in every later pass: the one in its own place.
    """
    length = q.shape[2]
    keys, values = (torch.cat(parts, dim=2) for parts in zip(*bank, strict=True))
    place = torch.arange(length, device=q.device)
    masks = [place[:, None] >= place, *([place[:, None] == place] * (len(bank) - 1))]
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=torch.cat(masks, dim=1))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = linear(width, inner), linear(width, inner)
        self.down_proj = linear(inner, width, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.self_attn, self.mlp = Attention(config), MLP(config)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], bank: Bank | None = None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turns, bank)
        return x + self.mlp(self.post_attention_layernorm(x))


class Draft(nn.Module):
    """A small llama; the rows of its embeddings are its output layer too."""

    def __init__(self, config: Config, target: Target) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        with torch.no_grad():
            self.embed_tokens.weight.copy_(projected(target.embeddings, config["hidden_size"]))
            self.norm.weight.fill_(0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return hidden states [rows, length, width] for the output layer."""
        x = self.embed_tokens(tokens)
        turns = rotations(self.config, tokens.shape[1], tokens.device)
        for layer in self.layers:
            x = layer(x, turns)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)


def projected(embeddings: Tensor, width: int) -> Tensor:
    """Return the main components of embeddings, turned at random: all columns weigh the same."""
    whole = embeddings.float()
    _, vectors = torch.linalg.eigh((whole.T @ whole).cpu())
    made = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(width, width, generator=made))[0]
    return whole @ (vectors[:, -width:] @ turn).to(whole)


class Head(nn.Module):
    """`layers` layers of the target's sizes, over the target's `shortlist` first ids."""

    def __init__(self, target: Target, layers: int, shortlist: int) -> None:
        super().__init__()
        config, width = target.config, target.width
        self.target, self.shortlist = target, shortlist
        self.pre_fc_norm_embedding = RMSNorm(width, target.eps)
        self.pre_fc_norm_hidden = RMSNorm(width, target.eps)
        self.fc = linear(2 * width, width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(layers))
        self.norm = RMSNorm(width, target.eps)
        with torch.no_grad():
            self.norm.weight.copy_(0.5 * target.norm.float())

    def forward(self, tokens: Tensor, hidden: Tensor, steps: int) -> list[Tensor]:
        """Return its outputs [rows, length, width] of `steps` passes, each on those of the last.

        The first reads `hidden` at a position and the token behind it; pass k the k-th behind it.
        """
        banks: list[Bank] = [[] for _ in self.layers]
        length = tokens.shape[1]
        cos, sin = rotations(self.target.config, length + steps, tokens.device)
        outputs: list[Tensor] = []
        for step in range(steps):
            behind = tokens.roll(-1 - step, dims=1)  # what wraps round has no weight
            embedded = self.pre_fc_norm_embedding(F.embedding(behind, self.target.embeddings))
            state = outputs[-1] if outputs else hidden
            x = self.fc(torch.cat([embedded, self.pre_fc_norm_hidden(state)], dim=-1))
            turns = cos[step : step + length], sin[step : step + length]
            for layer, bank in zip(self.layers, banks, strict=True):
                x = layer(x, turns, bank)
            outputs.append(self.norm(x))
        return outputs

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.rows())

    def rows(self) -> Tensor:
        return self.target.embeddings[: self.shortlist]


def draft_config(target: Config, width: int, layers: int, inner: int) -> dict[str, Any]:
    """Return the config of a small llama with the target's vocabulary and head width."""
    heads = width // target["head_dim"]
    return {
        **{key: value for key, value in target.items() if key != "quantization"},
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "tie_word_embeddings": True,
    }
