"""Training of one model for a number of minutes: schedule, optimizers, checkpoints.

Progress is the share of the time budget that is used up, so a busy machine trains on fewer tokens
but always ends with the learning rate at zero. Interrupted training resumes from its last
checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from training.corpus import Batch, Corpus
from training.muon import Muon, update

WARMUP_STEPS, PLATEAU = 40, 0.4  # flat until this share of the time, then down to zero
MATRIX_RATE, OTHER_RATE = 3e-3, 2e-3
SAVE_EVERY_S = 180
DISTILL_WEIGHT = 0.8  # of the loss; the rest is cross entropy


@dataclass(frozen=True, slots=True)
class Phase:
    """Shape of the batches until this share of the time budget is used."""

    until: float
    rows: int
    length: int


PHASES = (
    Phase(0.90, 8, 384),
    Phase(1.00, 2, 2048),  # far positions
)

# Called at every checkpoint, so that a usable model exists early.
OnCheckpoint = Callable[[nn.Module], None]


@dataclass(slots=True)
class Progress:
    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    loss: float = float("nan")  # moving average of the answers' cross entropy


class Trainer:
    """Optimizers and schedule of one model."""

    phases = PHASES

    def __init__(
        self, model: nn.Module, corpus: Corpus, minutes: float, teacher: nn.Module | None = None
    ) -> None:
        self.model, self.corpus, self.teacher = model, corpus, teacher
        self.budget_s = minutes * 60
        self.progress = Progress()
        inner = {
            name: weight
            for name, weight in model.named_parameters()
            if weight.ndim == 2 and "embed" not in name
        }
        others = [weight for name, weight in model.named_parameters() if name not in inner]
        # Muon learns to copy in far fewer tokens than AdamW; it is made for matrices between layers
        # only.
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(inner.values()), MATRIX_RATE),
            (torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0), OTHER_RATE),
        ]

    def run(self, checkpoint: Path, on_checkpoint: OnCheckpoint) -> Progress:
        """Train until the budget is spent; saves to ``checkpoint`` on the way and at the end."""
        if checkpoint.exists():
            self.load(checkpoint)
        saved_at = self.progress.elapsed_s
        with tqdm(
            total=round(self.budget_s),
            initial=round(self.progress.elapsed_s),
            unit="s",
            mininterval=10,
        ) as bar:
            while self.progress.elapsed_s < self.budget_s:
                started = time.monotonic()
                share = self.progress.elapsed_s / self.budget_s
                phase = next(phase for phase in self.phases if share < phase.until)
                self.step(self.corpus.batch(phase.rows, phase.length), self.rate(share))
                self.progress.elapsed_s += time.monotonic() - started
                bar.set_postfix_str(
                    f"{self.progress.tokens / 1e6:.2f}M tokens, loss {self.progress.loss:.3f}",
                    False,
                )
                bar.update(round(self.progress.elapsed_s) - bar.n)
                if self.progress.elapsed_s - saved_at > SAVE_EVERY_S:
                    saved_at = self.progress.elapsed_s
                    self.save(checkpoint)
                    on_checkpoint(self.model)
        self.save(checkpoint)
        on_checkpoint(self.model)
        return self.progress

    def rate(self, share: float) -> float:
        """Return the factor on both learning rates."""
        return min(
            (self.progress.step + 1) / WARMUP_STEPS, 1.0, max(0.0, 1 - share) / (1 - PLATEAU)
        )

    def step(self, batch: Batch, rate: float) -> None:
        """Make one update and advance the progress."""
        tokens, weights = torch.from_numpy(batch.tokens), torch.from_numpy(batch.weights)[:, 1:]
        inputs, wanted = tokens[:, :-1], tokens[:, 1:]
        losses, answers = self.losses(inputs, wanted)
        flat = weights.flatten()
        ((losses * flat).sum() / flat.sum()).backward()
        update(self.model, self.optimizers, rate)
        self._record(answers.detach(), flat, inputs.numel())

    def losses(self, inputs: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return for each token of ``wanted`` [rows, length] what is minimised, and the cross
        entropy of answers that is reported: both [rows x length].
        """
        logits = self.model(inputs)
        answers = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        if self.teacher is None:
            return answers, answers
        with torch.no_grad():
            taught = self.teacher(inputs)
        return distilled(taught, logits, answers), answers

    def _record(self, answers: Tensor, weights: Tensor, count: int) -> None:
        progress, counted = self.progress, answers[weights == 1.0]
        if counted.numel():  # a short batch may have no answer
            loss = counted.mean().item()
            progress.loss = loss if progress.step == 0 else 0.98 * progress.loss + 0.02 * loss
        progress.step += 1
        progress.tokens += count

    def save(self, path: Path) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
            "progress": asdict(self.progress),
            "rng": self.corpus.rng.getstate(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=False)
        self.model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])
        self.corpus.rng.setstate(state["rng"])


def distilled(taught: Tensor, logits: Tensor, answers: Tensor) -> Tensor:
    """Return the loss of a model that learns from a teacher's logits and from the text."""
    return DISTILL_WEIGHT * divergence(taught, logits) + (1 - DISTILL_WEIGHT) * answers


def divergence(taught: Tensor, logits: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of the teacher's distribution from the model's, per
    token: [rows x length].
    """
    teacher = F.log_softmax(taught.flatten(0, 1), dim=-1)
    student = F.log_softmax(logits.flatten(0, 1), dim=-1)
    return (teacher.exp() * (teacher - student)).sum(-1)
