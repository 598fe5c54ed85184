"""Initial weights with a copying circuit (induction heads).

Copying forms late in training: attention has to look back one token in one layer before matching
tokens in the next one helps ("induction heads", Olsson et al., 2022). These models see a few
million tokens, so the circuit is written into the initial weights, and training refines it. Layout
of the residual stream:

    0            a constant, for attention scores that depend on positions only
    1 … n        the token itself
    48 more      codes of the previous token (32: two codes) and of the one before it (16)

A matching head at token t attends to positions whose two previous tokens are t and t - 1, and
copies the token there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

CODE = 16  # numbers in a token's code
HEAD = 64  # numbers in a head
EMBEDDING_STD, CONSTANT = 0.05, 0.2
CODE_GAIN = 0.1  # twice the size of an embedding's numbers
COPY_GAIN = 0.25
POSITION_SCORE = 7.2  # a head for one distance weighs its neighbours about e^-6
FIRST_MATCH, SECOND_MATCH = 2.2, 1.5  # the latest token counts more
NORMED_MATCH = 1.7  # where queries and keys are normed, their norm's weight sets the scale instead
FAST_PAIRS = 8  # rotary pairs that turn fast enough to tell neighbours apart
# Positions of a head's codes: rotary pairs so slow that distance hardly changes them, both halves.
FIRST_DIMS = torch.cat([torch.arange(24, 32), torch.arange(56, 64)])
SECOND_DIMS = torch.cat([torch.arange(16, 24), torch.arange(48, 56)])


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of the residual stream, and the codes of tokens."""

    width: int
    first_code: Tensor  # [CODE, width], reads a token
    second_code: Tensor  # [CODE, width]

    @property
    def content_end(self) -> int:
        return self.width - 3 * CODE

    @property
    def before(self) -> slice:
        """Both codes of the previous token."""
        return slice(self.content_end, self.content_end + 2 * CODE)

    @property
    def before_that(self) -> slice:
        return slice(self.width - CODE, self.width)


def new_layout(embedding: Tensor) -> Layout:
    """Rewrite ``embedding`` [vocabulary, width] to the layout, in place."""
    width = embedding.shape[1]
    nn.init.normal_(embedding, std=EMBEDDING_STD)
    embedding[:, 0] = CONSTANT
    embedding[:, width - 3 * CODE :] = 0
    return new_codes(width)


def new_codes(width: int) -> Layout:
    """Return a layout of residual streams of ``width`` with codes of its own."""
    codes = torch.zeros(2 * CODE, width)
    nn.init.orthogonal_(codes[:, 1 : width - 3 * CODE])
    return Layout(width, codes[:CODE], codes[CODE:])


def normed_constant(layout: Layout) -> float:
    """Return the value of the constant after the first norm."""
    square = CONSTANT**2 + (layout.content_end - 1) * EMBEDDING_STD**2
    return CONSTANT / (square / layout.width) ** 0.5


@torch.no_grad()
def look_back(attention: nn.Module, layout: Layout, theta: float) -> None:
    """Write the first layer of a llama: one head copies the codes of the previous token, another of
    the one before it.
    """
    group = attention.heads // attention.kv_heads
    turns = theta ** (-torch.arange(FAST_PAIRS) * 2 / HEAD)
    score = POSITION_SCORE / normed_constant(layout)
    reads = (torch.cat([layout.first_code, layout.second_code]), layout.second_code)
    places = (layout.before, layout.before_that)
    for kv_head, (distance, read, place) in enumerate(zip((1, 2), reads, places, strict=True)):
        keys = attention.k_proj.weight[kv_head * HEAD : (kv_head + 1) * HEAD]
        values = attention.v_proj.weight[kv_head * HEAD : (kv_head + 1) * HEAD]
        head = kv_head * group
        queries = attention.q_proj.weight[head * HEAD : (head + 1) * HEAD]
        output = attention.o_proj.weight[:, head * HEAD : (head + 1) * HEAD]
        for weight in (queries, keys, output):
            weight.zero_()
        keys[:FAST_PAIRS, 0] = score
        # A query turned back by ``distance`` meets the unturned key exactly there.
        queries[:FAST_PAIRS, 0] = score * (distance * turns).cos()
        queries[HEAD // 2 : HEAD // 2 + FAST_PAIRS, 0] = -score * (distance * turns).sin()
        values[: len(read)] = read
        output[place, : len(read)] = CODE_GAIN * torch.eye(len(read))


@torch.no_grad()
def shift(conv: nn.Module, layout: Layout) -> None:
    """Write the first layer of an lfm2: the same by a short convolution with open gates."""
    width, channels = layout.width, slice(layout.content_end, layout.width)
    gates, out_gates, signal = conv.in_proj.weight.split(width)
    for gate in (gates, out_gates):
        gate[channels] = 0
        gate[channels, 0] = 1 / normed_constant(layout)
    signal[channels] = torch.cat([layout.first_code, layout.second_code, layout.second_code])
    taps = conv.conv.weight[:, 0]
    taps[channels] = 0
    taps[layout.before, -2] = 1
    taps[layout.before_that, -3] = 1
    conv.out_proj.weight[:, channels] = 0
    conv.out_proj.weight[channels, channels] = CODE_GAIN * torch.eye(3 * CODE)


@torch.no_grad()
def match(attention: nn.Module, layout: Layout, start: int) -> int:
    """Write a later layer: one head per key-value head matches and copies up to 64 numbers of the
    token there.

    Copies from ``start`` of the residual stream on; returns the start for the next layer.
    """
    group = attention.heads // attention.kv_heads
    output = attention.out_proj if attention.normed else attention.o_proj
    eye = torch.eye(layout.width)
    for kv_head in range(attention.kv_heads):
        keys = attention.k_proj.weight[kv_head * HEAD : (kv_head + 1) * HEAD]
        values = attention.v_proj.weight[kv_head * HEAD : (kv_head + 1) * HEAD]
        head = kv_head * group
        queries = attention.q_proj.weight[head * HEAD : (head + 1) * HEAD]
        write = output.weight[:, head * HEAD : (head + 1) * HEAD]
        for weight in (queries, keys):
            weight.zero_()
        queries[FIRST_DIMS] = FIRST_MATCH * layout.first_code
        keys[FIRST_DIMS] = FIRST_MATCH * eye[layout.before][:CODE]
        queries[SECOND_DIMS] = SECOND_MATCH * eye[layout.before][CODE:]
        keys[SECOND_DIMS] = SECOND_MATCH * eye[layout.before_that]
        end = min(start + HEAD, layout.content_end)
        values[: end - start] = eye[start:end]
        write[:, : end - start] = COPY_GAIN * eye[start:end].T
        start = end
    if attention.normed:
        attention.q_layernorm.weight.fill_(NORMED_MATCH)
        attention.k_layernorm.weight.fill_(NORMED_MATCH)
    return start
