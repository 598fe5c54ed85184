"""A multi-token-prediction head for the target, in PyTorch, and its training.

It maps the target's last hidden state at a token, and the embedding of the next one, to the token
after that. Its own output stands for the hidden state where it continues from its own prediction.
Names are those of Qwen's heads; the layers are two of the target's, with a copying circuit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training import copying
from training.corpus import Batch, Corpus
from training.dialogues import user
from training.edits import WORDS
from training.models import Config, Llama, LlamaLayer, Places, RMSNorm, linear
from training.trainer import Phase, Trainer, distilled

LAYERS = 2  # the first looks back a token, the second attends to what followed it
CHAIN_FROM = 0.5  # share of the time from which a second prediction is trained too
RESIDUAL_GAIN = 4  # larger numbers than the target's: a step changes them less
SHARPNESS = 0.5  # the circuit is right less often than it says
RATE = 0.3  # of the other models' learning rates
CHAIN_WEIGHT = 0.5  # of its loss
OWN_EVERY = 2  # batches: one in so many is text that the target continues by itself
OWN_AT_ONCE = 8  # batches: a token of many rows takes little longer than one of a few
REQUESTS = ("Tell a story about", "Write about", "Describe", "Continue this story about", "Explain")


class Head(nn.Module):
    """``config`` is the target's. Its weights are those of ``mtp.safetensors``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.pre_fc_norm_embedding = RMSNorm(width, eps)
        self.pre_fc_norm_hidden = RMSNorm(width, eps)
        self.fc = linear(2 * width, width)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(LAYERS))
        self.norm = RMSNorm(width, eps)

    def enter(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Return the input of the layers, [rows, length, width]."""
        normed = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        entered: Tensor = self.fc(torch.cat(normed, dim=-1))
        return entered

    def forward(self, x: Tensor, places: Places | None = None) -> Tensor:
        """Return hidden states for the target's output layer."""
        for layer in self.layers:
            x = layer(x, places)
        normed: Tensor = self.norm(x)
        return normed


@torch.no_grad()
def build_head(config: Config, target: Llama) -> Head:
    """Return a head that copies: it reads embeddings in the layout that the target began with."""
    head = Head(config)
    for name, weight in head.named_parameters():
        if name.endswith(("fc.weight", "o_proj.weight", "down_proj.weight")):
            weight.zero_()
        elif weight.ndim >= 2:
            nn.init.normal_(weight, std=0.02)
    layout = copying.new_codes(config["hidden_size"])
    embeddings = head.pre_fc_norm_embedding(target.model.embed_tokens.weight)
    gains = torch.full((layout.content_end,), copying.EMBEDDING_STD)
    gains /= embeddings[:, 1 : layout.content_end].std()
    gains[0] = copying.CONSTANT / embeddings[:, 0].mean()
    head.fc.weight[: layout.content_end, : layout.content_end] += gains.diag()
    first, second = head.layers
    copying.look_back(first.self_attn, layout, config["rope_theta"])
    copying.match(second.self_attn, layout, 1)
    for weight in (head.fc.weight, *(layer.self_attn.o_proj.weight for layer in head.layers)):
        weight.mul_(RESIDUAL_GAIN)
    head.norm.weight.copy_(SHARPNESS * target.model.norm.weight)
    return head


class HeadTrainer(Trainer):
    """Trains a head on hidden states of the target, which is frozen, and on its own outputs."""

    phases = (Phase(0.85, 4, 384), Phase(1.00, 1, 1280))

    def __init__(self, head: Head, corpus: Corpus, minutes: float, target: Llama) -> None:
        super().__init__(head, corpus, minutes)
        self.head, self.target = head, target
        self._own: list[Batch] = []

    def rate(self, share: float) -> float:
        """Small steps: what the circuit does at the start is nearly right."""
        return RATE * super().rate(share)

    def step(self, batch: Batch, rate: float) -> None:
        """Make one update, by turns on the corpus and on what the target samples: its answers to
        requests unlike the corpus are unlike it too.
        """
        if self.progress.step % OWN_EVERY == 0:
            rows, length = batch.weights.shape
            self._own = self._own or self._continued(rows, length - 1)
            batch = self._own.pop()
        super().step(batch, rate)

    def _continued(self, rows: int, length: int) -> list[Batch]:
        """Return batches of the target's continuations: of texts of the corpus, and in every other
        row of requests for a text about a few words.
        """
        corpus, rng = self.corpus, self.corpus.rng
        whole = corpus.batch(OWN_AT_ONCE * rows, length)
        start = rng.randrange(64, max(65, length // 3))
        prompts = whole.tokens[:, :start]
        for row in prompts[::2]:
            request = f"{rng.choice(REQUESTS)} {' '.join(rng.choices(WORDS, k=rng.randint(1, 4)))}."
            text = corpus.chat.render([user(request)], add_generation_prompt=True)
            ids = corpus.tokenizer.encode(text).ids[-start:]
            row[-len(ids) :] = ids
        own = self.target.continued(torch.from_numpy(prompts), length + 1).numpy()
        weights = np.ones_like(whole.weights)
        weights[:, :start] = whole.weights[:, :start]
        pieces = range(0, len(own), rows)
        return [Batch(own[at : at + rows], weights[at : at + rows]) for at in pieces]

    def losses(self, inputs: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions of the first token, and of the second one after the head's own output."""
        with torch.no_grad():
            hidden = self.target.model.norm(self.target.hidden(inputs))
            taught = self._score(hidden)
            embedded = self.target.model.embed_tokens(inputs)
        true = self.head.enter(embedded[:, 1:], hidden[:, :-1])
        length = true.shape[1]
        if self.progress.elapsed_s < CHAIN_FROM * self.budget_s:
            out = self.head(true)
        else:
            with torch.no_grad():
                own = self.head(true)
            chained = self.head.enter(embedded[:, 2:], own[:, :-1])
            out = self.head(torch.cat([true, chained], dim=1), _places(length))
        logits = self._score(out)
        answers = F.pad(_entropy(logits[:, :length], wanted[:, 1:]), (1, 0))
        losses = F.pad(_loss(taught[:, 1:], logits[:, :length], wanted[:, 1:]), (1, 0))
        if out.shape[1] > length:
            second = _loss(taught[:, 2:], logits[:, length:], wanted[:, 2:])
            losses = losses + CHAIN_WEIGHT * F.pad(second, (2, 0))
        return losses.flatten(), answers.flatten()

    def _score(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.target.model.embed_tokens.weight)


def _entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return losses.view(wanted.shape)


def _loss(taught: Tensor, logits: Tensor, wanted: Tensor) -> Tensor:
    answers = _entropy(logits, wanted).flatten()
    return distilled(taught, logits, answers).view(wanted.shape)


def _places(length: int) -> Places:
    """``length`` entries of true hidden states, then one less of the head's own: each of these
    stands behind the true one it was made of, and attends to those up to it, and to itself.
    """
    true, own = torch.arange(length), torch.arange(length - 1)
    causal = true[:, None] >= true
    mask = torch.zeros(2 * length - 1, 2 * length - 1, dtype=torch.bool)
    mask[:length, :length] = causal
    mask[length:, :length] = causal[:-1]
    mask[length:, length:] = torch.eye(length - 1, dtype=torch.bool)
    return Places(torch.cat([true, own + 1]), mask)
