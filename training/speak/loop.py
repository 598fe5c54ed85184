"""Training of the draft model and of heads in one loop on the target's distributions.

Progress is the share of the time that is used, so a slow machine trains on fewer tokens but ends
with the learning rates at zero as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.muon import Muon, update
from training.speak.students import Draft, Head
from training.speak.target import Target

WARMUP_STEPS, PLATEAU = 16, 0.35  # flat until this share of the time, then down to zero
MATRIX_RATE, OTHER_RATE = 3e-3, 1.5e-3
CHAIN_WEIGHTS = (1.0, 0.7)  # of a head's passes, each on its own output before
ONE_PASS = 0.65  # share of the time in which heads learn the first pass alone, the cheapest
HARD = 0.2  # of the loss: the target's best token; the rest is its distribution
LONG_EVERY = 16  # steps: one in so many puts four texts in a row, for far positions
PROMPT_WEIGHT = 0.15  # of tokens of prompts and headers, against an answer's

Report = Callable[[dict[str, Any]], None]


class Trainer:
    """Optimizers of one student."""

    def __init__(self, student: nn.Module, rate: float = 1.0) -> None:
        named = list(student.named_parameters())
        inner = [weight for name, weight in named if weight.ndim == 2 and "embed" not in name]
        others = [weight for name, weight in named if weight.ndim != 2 or "embed" in name]
        self.student = student
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(inner, dtype=torch.bfloat16), rate * MATRIX_RATE),
            (torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0), rate * OTHER_RATE),
        ]

    def update(self, factor: float) -> None:
        update(self.student, self.optimizers, factor)


def train(
    target: Target,
    students: dict[str, nn.Module],
    tokens: Tensor,
    weights: Tensor,
    hidden: Tensor,
    rows: int,
    seconds: float,
    report: Report,
    report_every_s: float = 5,
) -> None:
    """Train on texts [texts, length] with a weight and the target's state for each token."""
    trainers = {
        name: Trainer(student, 1.0 if isinstance(student, Draft) else 0.7)
        for name, student in students.items()
    }
    order = torch.randperm(len(tokens)).to(tokens.device)
    start, step, at, seen, reported = time.monotonic(), 0, 0, 0, 0.0
    sums: dict[str, Tensor] = {}
    while (elapsed := time.monotonic() - start) < seconds:
        if at + rows > len(order):
            order, at = order[torch.randperm(len(order)).to(order.device)], 0
        picked = order[at : at + rows]
        batch, heed, known = tokens[picked].long(), weights[picked].float(), hidden[picked]
        if step % LONG_EVERY == LONG_EVERY - 1 and rows % 4 == 0:
            batch, heed = batch.view(rows // 4, -1), heed.view(rows // 4, -1)
            known = known.view(rows // 4, -1, target.width)
        share = elapsed / seconds
        factor = min((step + 1) / WARMUP_STEPS, 1.0, max(0.0, 1 - share) / (1 - PLATEAU))
        try:
            passes = 1 if share < ONE_PASS else len(CHAIN_WEIGHTS)
            losses = one_step(target, trainers, batch, known, heed, factor, passes)
        except torch.OutOfMemoryError:
            rows = max(4, rows // 2)
            for trainer in trainers.values():
                trainer.student.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            print(f"out of memory: {rows} rows from now on", flush=True)
            continue
        for name, loss in losses.items():
            sums[name] = 0.95 * sums[name] + 0.05 * loss if name in sums else loss
        at, step, seen = at + rows, step + 1, seen + batch.numel()
        if elapsed - reported > report_every_s:
            reported = elapsed
            figures = {name: round(float(value), 4) for name, value in sums.items()}
            elapsed = time.monotonic() - start
            rate = round(seen / elapsed)
            report({"step": step, "s": round(elapsed), "tokens": seen, "per_s": rate, **figures})


def one_step(
    target: Target,
    trainers: dict[str, Trainer],
    tokens: Tensor,
    hidden: Tensor,
    heed: Tensor,
    factor: float,
    passes: int,
) -> dict[str, Tensor]:
    """Update each student once on tokens [rows, length]; return their losses."""
    losses = {}
    for name, trainer in trainers.items():
        student = trainer.student
        with torch.autocast(target.device.type, torch.bfloat16):
            if isinstance(student, Head):
                loss, shown = head_loss(student, tokens, hidden, heed, passes)
            else:
                assert isinstance(student, Draft)
                loss = shown = draft_loss(student, target, tokens, hidden, heed)
        loss.backward()
        trainer.update(factor)
        losses[name] = shown.detach()
    return losses


def draft_loss(
    draft: Draft, target: Target, tokens: Tensor, hidden: Tensor, heed: Tensor
) -> Tensor:
    with torch.no_grad():
        taught = F.linear(hidden, target.embeddings)
    # Weights are those of the token that a place predicts.
    behind = heed.roll(-1, dims=1)
    behind[:, -1] = 0
    return distilled(taught, draft.logits(draft(tokens)), behind)


def head_loss(
    head: Head, tokens: Tensor, hidden: Tensor, heed: Tensor, passes: int
) -> tuple[Tensor, Tensor]:
    """Return the loss over `passes`, and that of the first."""
    losses = []
    for step, output in enumerate(head(tokens, hidden, passes)):
        ahead = step + 1
        behind = heed.roll(-ahead - 1, dims=1)
        behind[:, -ahead - 1 :] = 0
        told = behind > 0
        taught = hidden.roll(-ahead, dims=1)[told]
        losses.append(Distilled.apply(output[told], taught, head.rows(), behind[told]))
    total = sum(weight * loss for weight, loss in zip(CHAIN_WEIGHTS[:passes], losses, strict=True))
    assert isinstance(total, Tensor)
    return total, losses[0]


def distilled(taught: Tensor, logits: Tensor, heed: Tensor) -> Tensor:
    """Return the mean cross entropy with the target's distribution, sharpened by its best token."""
    known = taught.flatten(0, 1).float()
    with torch.no_grad():
        wanted = (1 - HARD) * known.softmax(-1)
        best = known.argmax(-1, keepdim=True)
        wanted.scatter_add_(-1, best, torch.full_like(best, HARD, dtype=wanted.dtype))
    with torch.autocast(taught.device.type, enabled=False):
        guessed = logits.flatten(0, 1).float().log_softmax(-1)
        losses = -(wanted * guessed).sum(-1)
    flat = heed.flatten()
    return (losses * flat).sum() / flat.sum().clamp(min=1)


class Distilled(torch.autograd.Function):
    """The loss of `distilled` over a frozen output layer, some places at a time, with its gradient.

    Logits of a chunk stay in the cache: on a CPU that is twice as fast.
    """

    CHUNK = 256

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, taught: Tensor, rows: Tensor, heed: Tensor) -> Tensor:
        """Return the mean over places of `outputs` and `taught` [places, width], by `heed`."""
        gradients = torch.empty_like(outputs)
        total = torch.zeros((), device=outputs.device)
        share = heed / heed.sum().clamp(min=1)
        for at in range(0, len(outputs), Distilled.CHUNK):
            part = slice(at, at + Distilled.CHUNK)
            known = F.linear(taught[part].to(rows), rows).float()
            best = known.argmax(-1, keepdim=True)
            wanted = known.softmax(-1).mul_(1 - HARD)
            wanted.scatter_add_(-1, best, torch.full_like(best, HARD, dtype=wanted.dtype))
            logits = F.linear(outputs[part].to(rows), rows).float()
            guessed = logits.log_softmax(-1)
            total += ((wanted * guessed).sum(-1) * share[part]).sum()
            wrong = guessed.exp_().sub_(wanted).mul_(share[part, None])
            gradients[part] = (wrong.to(rows) @ rows).to(outputs)
        ctx.save_for_backward(gradients)
        return -total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        (gradients,) = ctx.saved_tensors
        return gradients * scale, None, None, None
