"""Acceptance by position: the share of places where drafts 1 … n all are the target's best tokens.

Texts are the target's own at temperature 0, on requests held out from training.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.speak.students import Draft, Head
from training.speak.synthesis import Texts
from training.speak.target import Target

DEPTH = 4
GROUP = 64


@torch.no_grad()
def acceptance(
    student: nn.Module, target: Target, texts: Texts, kinds: Sequence[str], rows: int = 16
) -> dict[str, list[float]]:
    """Return the acceptance at `DEPTH` positions: of each kind of text, and of "all"."""
    was_training, sums, counts = student.training, {}, {}
    student.eval()
    for at in range(0, len(texts.tokens), rows):
        tokens, spoken = texts.tokens[at : at + rows], texts.spoken[at : at + rows]
        with torch.autocast(target.device.type, torch.bfloat16):
            right, counted = matches(student, target, tokens, spoken)
        accepted = right.cumprod(0) * counted
        for i, kind in enumerate(texts.kinds[at : at + rows]):
            for name in (kinds[kind], "all"):
                sums[name] = sums.get(name, 0) + accepted[:, i].sum(-1)
                counts[name] = counts.get(name, 0) + counted[i].sum()
    student.train(was_training)
    return {
        name: [round(float(n / counts[name].clamp(min=1)), 4) for n in sums[name]]
        for name in sorted(sums)
    }


def matches(
    student: nn.Module, target: Target, tokens: Tensor, spoken: Tensor
) -> tuple[Tensor, Tensor]:
    """Return whether drafts are right, [depth, rows, length], and places that count.

    A place is one whose next tokens to the depth are all in one answer.
    """
    if isinstance(student, Head):
        outputs = student(tokens, target.hidden(tokens), DEPTH)
        ahead = 2
    else:
        assert isinstance(student, Draft)
        output = student(tokens)
        outputs = [output.roll(-step, dims=1) for step in range(DEPTH)]
        ahead = 1
    right, counted = [], torch.ones_like(spoken)
    last = tokens.shape[1] - ahead - DEPTH
    counted[:, last:] = False
    for step, output in enumerate(outputs):
        best = student.logits(output).argmax(-1)
        right.append(best == tokens.roll(-ahead - step, dims=1))
        counted &= spoken.roll(-ahead - step, dims=1)
    return torch.stack(right).float(), counted.float()


@torch.no_grad()
def coverage(texts: Texts, shortlist: int) -> float:
    """Return the share of answers' tokens that a shortlist has."""
    return round(float((texts.tokens[texts.spoken] < shortlist).float().mean()), 4)


def cut(head: Head, shortlist: int) -> Head:
    """Return a head that scores fewer tokens, with the same weights."""
    shorter = copy.copy(head)
    shorter.shortlist = shortlist
    return shorter


@torch.no_grad()
def quantized(student: nn.Module, bits: int, embedding_bits: int | None = None) -> nn.Module:
    """Return a copy whose matrices went through affine quantization in groups of 64."""
    memo = {id(student.target): student.target} if isinstance(student, Head) else {}
    other = copy.deepcopy(student, memo)
    for name, weight in other.named_parameters():
        if weight.ndim == 2:
            count = embedding_bits if embedding_bits and "embed" in name else bits
            weight.copy_(rounded(weight, count))
    return other


def rounded(weight: Tensor, bits: int) -> Tensor:
    groups = weight.unflatten(-1, (-1, GROUP))
    low = groups.amin(-1, keepdim=True)
    scale = (groups.amax(-1, keepdim=True) - low).clamp(min=1e-8) / (2**bits - 1)
    return ((groups - low).div(scale).round() * scale + low).flatten(-2)
