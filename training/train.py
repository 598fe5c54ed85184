"""``python -m training.train``: tokenizer, five models and a head, export and evaluation, in one
command.

``--minutes`` is the time for all models together; ``--only target`` trains one (draft and head need
a trained target, those that see need both); checkpoints are in ``--work``, and running the command
again resumes from them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn

from training.corpus import MIX, Corpus
from training.export import export, export_head
from training.head import HeadTrainer, build_head
from training.models import CONFIGS, Llama, build, count_parameters
from training.see import train_vision, train_vision_draft
from training.snippets import Library, load_libraries
from training.tokenizer import VOCAB_SIZE, Chat, train_tokenizer
from training.trainer import Trainer

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "omlx" / "bundled" / "omlx-demo"
# In this order: draft and head learn from the finished target, and those that see begin as target
# and draft.
SHARES = {
    "target": 0.35,
    "hybrid": 0.2,
    "draft": 0.15,
    "head": 0.1,
    "vision": 0.15,
    "vision-draft": 0.05,
}
SEEDS = {"target": 1, "hybrid": 2, "draft": 3, "head": 4}


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(options.threads)
    library, _ = load_libraries()
    tokenizer = load_tokenizer(options.work / "tokenizer.json", library)
    for name in [options.only] if options.only else list(SHARES):
        minutes = options.minutes if options.only else options.minutes * SHARES[name]
        teach = OTHERS.get(name) or partial(train, name)
        teach(minutes, tokenizer, library, options.work, options.out)
    if not options.only:
        evaluate(options.out)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.train", description="Train the bundled demo models."
    )
    parser.add_argument("--minutes", type=float, default=110, help="time for all models together")
    parser.add_argument("--only", choices=sorted(SHARES), help="train one model, for --minutes")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of PyTorch"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "training" / ".work", help="folder for checkpoints"
    )
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder for the finished models")
    return parser.parse_args()


def load_tokenizer(path: Path, library: Library) -> Tokenizer:
    """Return the tokenizer of an earlier run, or train one on library code and sample
    conversations.
    """
    if path.exists():
        return Tokenizer.from_file(str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer([*library.files, *sample_conversations(library, 3000)])
    tokenizer.save(str(path))
    return tokenizer


def sample_conversations(library: Library, count: int) -> list[str]:
    # The corpus wants a tokenizer only to encode, and these stay text.
    corpus = Corpus(Tokenizer.from_str(EMPTY_TOKENIZER), library, seed=0)
    chat, rng = Chat(), random.Random(0)
    kinds = [kind for kind, _ in MIX if kind not in ("random", "library")]
    drawn = [corpus.dialogue(rng.choice(kinds), 512) for _ in range(count)]
    return [chat.render(dialogue.messages, dialogue.tools) for dialogue in drawn]


EMPTY_TOKENIZER = json.dumps(
    {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
)


def train(
    name: str, minutes: float, tokenizer: Tokenizer, library: Library, work: Path, out: Path
) -> None:
    """Train one model (or finish its training) and export it."""
    torch.manual_seed(SEEDS[name])
    config = CONFIGS[name]
    model = build(config)
    teacher = load_teacher(work) if name == "draft" else None
    print(f"{name}: {count_parameters(model):,} parameters, {VOCAB_SIZE} tokens", flush=True)
    trainer = Trainer(model, Corpus(tokenizer, library, SEEDS[name]), minutes, teacher)
    export(model, config, tokenizer, out / name)
    progress = trainer.run(
        work / f"{name}.pt", lambda trained: export(trained, config, tokenizer, out / name)
    )
    print(
        f"{name}: {progress.tokens:,} tokens, {progress.step} steps, "
        f"loss on answers {progress.loss:.3f}",
        flush=True,
    )


def train_head(
    minutes: float, tokenizer: Tokenizer, library: Library, work: Path, out: Path
) -> None:
    """Train a head for the exported target (or finish its training) and export it beside it."""
    torch.manual_seed(SEEDS["head"])
    config, folder = CONFIGS["target"], out / "target"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))  # of a target trained elsewhere
    target = Llama(config)
    weights = load_file(folder / "model.safetensors")
    target.load_state_dict({name: weight.float() for name, weight in weights.items()})
    target.eval().requires_grad_(False)
    head = build_head(config, target)
    print(f"head: {count_parameters(head):,} parameters", flush=True)
    trainer = HeadTrainer(head, Corpus(tokenizer, library, SEEDS["head"]), minutes, target)
    progress = trainer.run(work / "head.pt", lambda trained: export_head(trained, folder))
    print(f"head: {progress.tokens:,} tokens, {progress.step} steps", flush=True)


OTHERS = {"head": train_head, "vision": train_vision, "vision-draft": train_vision_draft}


def load_teacher(work: Path) -> nn.Module:
    """Return the trained target, rounded as it was exported."""
    teacher = build(CONFIGS["target"])
    state = torch.load(work / "target.pt", weights_only=False)["model"]
    teacher.load_state_dict({name: weight.to(torch.bfloat16) for name, weight in state.items()})
    return teacher.eval().requires_grad_(False)


def evaluate(out: Path) -> None:
    """Measure with mlx-lm, if it is installed."""
    if importlib.util.find_spec("mlx_lm") is None:
        print("mlx-lm is not installed here; measure with: python -m training.evaluate")
        return
    subprocess.run(
        [sys.executable, "-m", "training.evaluate", "--models", str(out)], cwd=ROOT, check=True
    )


if __name__ == "__main__":
    main()
