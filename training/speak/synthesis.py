"""Synthesis of training text: the target answers requests, and thinks up requests itself.

All rows stand at the same position: a step reads the next token of a row's prompt, or samples it.
Behind an answer the header of the next turn is forced, and the target continues as the user.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from training.speak.target import Target

IM_END = 2
DOCUMENT, USER, ASSISTANT = 0, 1, 2
"""Who speaks at the end of a prompt."""
USER_TEMPERATURE = 0.9


@dataclass(frozen=True)
class Prompt:
    tokens: np.ndarray
    kind: int
    speaker: int
    temperature: float


@dataclass(frozen=True)
class Texts:
    """`tokens` and `spoken` [rows, length] (whether an assistant's sampled token), `kinds` [rows].

    `hidden` [rows, length, width] are the target's states; the last position's is zero.
    """

    tokens: Tensor
    spoken: Tensor
    kinds: np.ndarray
    temperatures: np.ndarray
    hidden: Tensor


@dataclass(frozen=True)
class Headers:
    """Tokens between the end of a turn and the next one's text, `user` and `assistant`: [n]."""

    user: Sequence[int]
    assistant: Sequence[int]


@torch.no_grad()
def synthesize(
    target: Target, prompts: Sequence[Prompt], headers: Headers, length: int, deadline: float
) -> Texts:
    """Return a text of `length` tokens for each prompt; shorter ones once `deadline` has passed."""
    device, rows = target.device, len(prompts)
    given = np.zeros((rows, length), np.int64)
    ends = np.array([min(len(p.tokens), length) for p in prompts])
    for row, prompt in enumerate(prompts):
        given[row, : ends[row]] = prompt.tokens[:length]
    tokens = torch.from_numpy(given).to(device)
    spoken = torch.zeros(rows, length, dtype=torch.bool, device=device)
    end = torch.from_numpy(ends).to(device)
    speaker = torch.tensor([p.speaker for p in prompts], device=device)
    warmth = torch.tensor([p.temperature for p in prompts], device=device)
    turns_to = [[0], headers.user, headers.assistant]
    sizes = torch.tensor([len(ids) for ids in turns_to], device=device)
    padded = [[*ids, *[0] * (int(sizes.max()) - len(ids))] for ids in turns_to]
    forced = torch.tensor(padded, device=device)
    left = torch.zeros_like(speaker)  # forced tokens to come
    cache = target.new_cache(rows, length)
    states = torch.zeros(rows, length, target.width, dtype=target.dtype, device=device)
    # On a CPU the product in float32 would take longer than the rest of a step.
    output = target.embeddings if device.type == "cpu" else target.embeddings.float()
    at = 0
    for at in range(length - 1):
        hidden = states[:, at] = target.step(tokens[:, at], at, cache)
        is_forced = left > 0
        own = at + 1 >= end
        next_forced = forced[speaker, (sizes[speaker] - left).clamp(max=forced.shape[1] - 1)]
        heat = torch.where(speaker == USER, USER_TEMPERATURE, warmth)
        sampled = sample(F.linear(hidden.to(output), output).float(), heat)
        chosen = torch.where(is_forced, next_forced, sampled)
        chosen = torch.where(own, chosen, tokens[:, at + 1])
        says = own & ~is_forced
        tokens[:, at + 1] = chosen
        spoken[:, at + 1] = says & (speaker == ASSISTANT)
        left = (left - 1).clamp(min=0)
        turns = says & (chosen == IM_END) & (speaker != DOCUMENT)
        speaker = torch.where(turns, USER + ASSISTANT - speaker, speaker)
        left = torch.where(turns, sizes[speaker], left)
        if at % 32 == 0 and time.monotonic() > deadline:
            break
    kinds = np.array([p.kind for p in prompts])
    heats = np.array([p.temperature for p in prompts])
    made = slice(0, at + 2)
    return Texts(tokens[:, made], spoken[:, made], kinds, heats, states[:, made])


def save_texts(texts: Texts, file: Path) -> None:
    """Keep texts for a later run, whose ids must be the vocabulary's own."""
    np.savez_compressed(
        file,
        tokens=texts.tokens.cpu().numpy().astype(np.uint16),
        spoken=texts.spoken.cpu().numpy(),
        kinds=texts.kinds,
        temperatures=texts.temperatures,
    )


def read_texts(target: Target, file: Path) -> Texts:
    """Return kept texts, with the target's states for them."""
    with np.load(file) as held:
        tokens = torch.from_numpy(held["tokens"].astype(np.int64)).to(target.device)
        spoken = torch.from_numpy(held["spoken"]).to(target.device)
        return Texts(tokens, spoken, held["kinds"], held["temperatures"], target.states(tokens))


def sample(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Return a token [rows] of float32 logits [rows, vocabulary]; temperature 0 takes the best."""
    warm = temperatures.nonzero()[:, 0]
    heated = logits[warm]
    noise = torch.empty_like(heated).exponential_().log_()
    logits[warm] = heated.addcmul_(noise, temperatures[warm, None], value=-1)
    return logits.argmax(-1)
