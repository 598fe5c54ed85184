"""Muon (Jordan et al., 2024): momentum whose update is made orthogonal by a Newton-Schulz
iteration.

Like ``torch.optim.Muon``, but with matrices of one shape stacked, and in float32 unless asked
otherwise: on a CPU without fast bfloat16 this halves its cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that pushes singular values towards 1
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon for matrices. Updates have the root mean square of AdamW updates, so learning rates are
    comparable.
    """

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        lr: float = 1e-3,
        momentum: float = 0.95,
        decay: float = 0.02,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(weights, {"lr": lr, "momentum": momentum, "decay": decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for shape, weights in by_shape.items():
                wanted = [self._nesterov(weight, group["momentum"]) for weight in weights]
                steps = orthogonal(torch.stack(wanted).to(self.dtype)).float()
                size = 0.2 * max(shape) ** 0.5
                for weight, step in zip(weights, steps, strict=True):
                    weight.mul_(1 - group["lr"] * group["decay"]).sub_(
                        step, alpha=group["lr"] * size
                    )

    def _nesterov(self, weight: nn.Parameter, momentum: float) -> Tensor:
        assert weight.grad is not None
        state = self.state[weight]
        if "average" not in state:
            state["average"] = torch.zeros_like(weight)
        average: Tensor = state["average"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(average, momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return approximately the nearest (semi-)orthogonal matrices, [count, rows, columns]."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def update(
    model: nn.Module, optimizers: Iterable[tuple[torch.optim.Optimizer, float]], factor: float
) -> None:
    """Make one update at `factor` of the peak rates, with gradients of norm 1 at most."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, peak in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
