"""Training of the model that sees, and of its draft.

The tower learns first, alone: heads on its features name colour, shape and place. Then tower and
text answer questions together. The text model begins as the trained target, and still reads other
conversations now and then, so that it does not forget them. The draft begins as the target's, and
reads the same conversations without the pictures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from training.corpus import Corpus
from training.export import export
from training.models import CONFIGS, Config, Llama, build
from training.muon import Muon
from training.pictures import SIDE, Subject, with_picture
from training.scenes import LABELS, SHOWN, Scenes, sighted_tokenizer
from training.sight import SCALE, TOWER, SightModel
from training.snippets import Library
from training.tokenizer import END_OF_TEXT, IM_END, IMAGE, VOCAB_SIZE

ROWS = VOCAB_SIZE + 8  # of the embedding: the tokens of pictures, and some to spare
LAYERS = {"target": 3, "draft": 2}
TOWER_SHARE, TOWER_ROWS = 0.5, 64
INK = 0.6  # share of black pictures at first: shapes are learned sooner without colours
TALK_ROWS, OTHER_EVERY = 24, 4  # every fourth batch is without pictures
PEAKS = {"tower": (3e-3, 2e-3), "talk": (1.5e-3, 1e-3)}  # of matrices, of the rest
WARMUP_STEPS, PLATEAU = 30, 0.4
SEED, HELD_OUT_SEED = 4, 1000
MEASURED = 200  # pictures

PROCESSOR: Config = {
    "image_processor_type": "SmolVLMImageProcessor",
    "do_image_splitting": False,
    "size": {"longest_edge": SIDE},
    "max_image_size": {"longest_edge": SIDE},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
STRATEGY = {"type": "draft-model", "draft_model": "omlx-demo/vision-draft"}
PACKAGE: Config = {
    "generation": {
        "speculative_decoding": {"default": "draft", "strategies": {"draft": STRATEGY}},
    }
}


def train_vision(
    minutes: float, tokenizer: Tokenizer, library: Library, work: Path, out: Path
) -> None:
    """Train the model that sees and export it; `out` has the trained target."""
    torch.manual_seed(SEED)
    tokenizer = sighted_tokenizer(tokenizer)
    config = vision_config(tokenizer)
    scenes = Scenes(Corpus(tokenizer, library, SEED))
    model = SightModel(sighted_config("target"), TOWER, config["image_token_id"])
    load_text(model.language_model, out / "target")
    tower_minutes = TOWER_SHARE * minutes
    finish(model, work / "tower.pt", lambda: train_tower(model, scenes, tower_minutes))
    finish(model, work / "vision.pt", lambda: train_talk(model, scenes, minutes - tower_minutes))
    files = {"preprocessor_config.json": PROCESSOR, "model-package.json": PACKAGE}
    export(model, config, tokenizer, out / "vision", files, reasons=False)
    for name, held_out in {"known": False, "unseen": True}.items():
        scenes = Scenes(Corpus(tokenizer, library, HELD_OUT_SEED), held_out=held_out)
        print(f"vision: {name} combinations, new pictures: {accuracy(model, scenes)}", flush=True)


def train_vision_draft(
    minutes: float, tokenizer: Tokenizer, library: Library, work: Path, out: Path
) -> None:
    """Train the draft of the model that sees and export it; `out` has the trained draft."""
    torch.manual_seed(SEED)
    tokenizer = sighted_tokenizer(tokenizer)
    scenes = Scenes(Corpus(tokenizer, library, SEED))
    config = sighted_config("draft")
    model = build(config)
    load_text(model, out / "draft")
    finish(model, work / "vision-draft.pt", lambda: train_talk(model, scenes, minutes))
    export(model, config, tokenizer, out / "vision-draft", reasons=False)


def sighted_config(name: str) -> Config:
    """Return the config of `target`'s first layers, or of `draft`, with the larger vocabulary."""
    config = {**CONFIGS[name], "vocab_size": ROWS}
    return {**config, "num_hidden_layers": LAYERS[name]}


def vision_config(tokenizer: Tokenizer) -> Config:
    return {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "image_token_id": tokenizer.token_to_id(IMAGE),
        "scale_factor": SCALE,
        "tie_word_embeddings": False,
        "vocab_size": ROWS,
        "eos_token_id": IM_END,
        "pad_token_id": END_OF_TEXT,
        "text_config": {**sighted_config("target"), "tie_word_embeddings": False},
        "vision_config": TOWER,
    }


def finish(model: nn.Module, checkpoint: Path, teach: Callable[[], None]) -> None:
    """Teach a phase, or read what an earlier run has learned in it."""
    if checkpoint.exists():
        model.load_state_dict(torch.load(checkpoint))
        return
    teach()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), checkpoint)


@torch.no_grad()
def load_text(model: nn.Module, folder: Path) -> None:
    """Read the weights of a trained model, with fresh rows for the new tokens."""
    state = load_file(folder / "model.safetensors")
    embedding = state["model.embed_tokens.weight"].float()
    fresh = embedding.mean(0) + 0.02 * torch.randn(ROWS - VOCAB_SIZE, embedding.shape[1])
    state["model.embed_tokens.weight"] = torch.cat([embedding, fresh])
    model.load_state_dict({name: state[name] for name in model.state_dict()})


class Heads(nn.Module):
    """Logits of colour, shape and place from features: [count, names] each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries = nn.Parameter(0.05 * torch.randn(len(LABELS), width))
        self.outputs = nn.ModuleList(nn.Linear(width, len(names)) for names in LABELS)

    def forward(self, features: Tensor) -> list[Tensor]:
        features = F.rms_norm(features, features.shape[-1:])
        pooled = (self.queries @ features.mT).softmax(-1).to(features.dtype) @ features
        return [output(pooled[:, i]) for i, output in enumerate(self.outputs)]


class Optimizers:
    """Muon for matrices, AdamW for the rest; the rates follow the share of the time."""

    def __init__(self, model: nn.Module, peaks: tuple[float, float]) -> None:
        inner: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            plain = any(part in name for part in ("embed", "queries", "outputs"))
            (others if plain or weight.ndim != 2 else inner).append(weight)
        self.model, self.steps = model, 0
        self.parts: tuple[tuple[torch.optim.Optimizer, float], ...] = (
            (Muon(inner), peaks[0]),
            (torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0), peaks[1]),
        )

    def step(self, loss: Tensor, share: float) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.steps += 1
        rate = min(self.steps / WARMUP_STEPS, 1.0, max(0.0, 1 - share) / (1 - PLATEAU))
        for optimizer, peak in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
            with torch.autocast("cpu", torch.bfloat16):
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def shares(minutes: float, name: str) -> Iterator[float]:
    """Yield the share of the time that is used, until it is over."""
    start, used = time.monotonic(), 0.0
    with tqdm(total=round(60 * minutes), desc=name, unit="s", mininterval=10) as bar:
        while used < 60 * minutes:
            yield used / (60 * minutes)
            used = time.monotonic() - start
            bar.update(round(used) - bar.n)


def train_tower(model: SightModel, scenes: Scenes, minutes: float) -> None:
    """Teach tower and connector, with heads that are thrown away."""
    heads = Heads(model.connector.modality_projection.proj.out_features)
    learning = nn.ModuleList([model.vision_model, model.connector, heads])
    optimizers = Optimizers(learning, PEAKS["tower"])
    for share in shares(minutes, "tower"):
        pictures, labels = scenes.pictures(TOWER_ROWS, max(0.0, INK - share))
        with torch.autocast("cpu", torch.bfloat16):
            named = heads(model.features(pictures))
        losses = [F.cross_entropy(named[i].float(), labels[:, i]) for i in range(len(LABELS))]
        optimizers.step(torch.stack(losses).sum(), share)


def train_talk(model: SightModel | Llama, scenes: Scenes, minutes: float) -> None:
    """Teach answers about pictures, which a draft does not see, and keep other conversations."""
    optimizers = Optimizers(model, PEAKS["talk"])
    blind = not isinstance(model, SightModel)
    for share in shares(minutes, "talk"):
        scene = scenes.talk(TALK_ROWS, blind=blind)
        if optimizers.steps % OTHER_EVERY == OTHER_EVERY - 1:
            scene = scenes.others()
        tokens, weights = map(torch.from_numpy, (scene.batch.tokens, scene.batch.weights))
        counted = weights[:, 1:] > 0
        with torch.autocast("cpu", torch.bfloat16):
            x = model.hidden(tokens[:, :-1], scene.pictures)
            logits = model.logits(x[counted]).float()
        losses = F.cross_entropy(logits, tokens[:, 1:][counted], reduction="none")
        weighed = weights[:, 1:][counted]
        optimizers.step((losses * weighed).sum() / weighed.sum(), share)


@torch.no_grad()
def accuracy(model: SightModel, scenes: Scenes) -> dict[str, float]:
    """Return the share of pictures of which greedy answers have colour and shape right, and all."""
    right = {"colour and shape": 0, "place too": 0}
    for _ in range(MEASURED):
        subject: Subject = scenes.rng.choice(scenes.subjects)
        said = answer(model, scenes, subject, "What is in the picture?")
        right["colour and shape"] += said.startswith(f"{subject.named} ")
        right["place too"] += said == f"{subject.named} {subject.place}."
    return {name: number / MEASURED for name, number in right.items()}


def answer(model: SightModel, scenes: Scenes, subject: Subject, question: str) -> str:
    """Draw a picture and return the greedy answer to a question about it."""
    messages: list[Any] = [with_picture(question)]
    text = scenes.corpus.chat.render(messages, add_generation_prompt=True)
    ids = scenes.corpus.tokenizer.encode(text.replace(IMAGE, SHOWN)).ids
    pictures, start = scenes.show([subject]), len(ids)
    while len(ids) < start + 32 and ids[-1] != IM_END:
        ids.append(int(model(torch.tensor([ids]), pictures)[0, -1].argmax()))
    said: str = scenes.corpus.tokenizer.decode(ids[start:])
    return said
