"""``python -m training.evaluate``: measures the exported models with mlx-lm, on files held out from
training.

Reports, as JSON: the loss on answers for each kind of document, the share of exact greedy answers,
and the acceptance rate of the draft model and of prompt lookup.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.utils import load
from tokenizers import Tokenizer
from tqdm import tqdm

from training import edits
from training.corpus import MIX, Corpus
from training.dialogues import Dialogue, assistant, fence, user
from training.snippets import Library, load_libraries
from training.tokenizer import IM_END, SPECIAL, Chat

BUNDLED = Path(__file__).resolve().parent.parent / "omlx" / "bundled" / "omlx-demo"
SEED = 1000
LONGEST_ANSWER = 400  # tokens
DEPTH = 4  # draft positions reported
LOOKUP_MATCH = 3  # minimum match length of prompt lookup, tokens
EDIT_KINDS: tuple[Callable[[random.Random, str], edits.Edit | None], ...] = (
    edits.repeat,
    edits.rename,
    edits.change_number,
    edits.remove_comments,
    edits.add_docstring,
    edits.add_hints,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.evaluate", description="Measure the demo models."
    )
    parser.add_argument("--models", type=Path, default=BUNDLED)
    parser.add_argument("--count", type=int, default=40, help="conversations for each figure")
    options = parser.parse_args()
    _, held_out = load_libraries()
    tokenizer = Tokenizer.from_file(str(options.models / "target" / "tokenizer.json"))
    models = {name: load_float32(options.models / name) for name in ("target", "hybrid", "draft")}
    report: dict[str, Any] = {"conversations": options.count}
    report["loss"] = {
        name: held_out_losses(model, Corpus(tokenizer, held_out, SEED), options.count)
        for name, model in models.items()
    }
    report["exact"] = {
        name: exact_answers(models[name], tokenizer, held_out, options.count)
        for name in ("target", "hybrid")
    }
    report["acceptance"] = acceptance(
        models["target"], models["draft"], tokenizer, held_out, options.count
    )
    print(json.dumps(report, indent=2))


def load_float32(folder: Path) -> nn.Module:
    model: nn.Module = load(str(folder))[0]
    model.set_dtype(mx.float32)
    return model


def logits(model: nn.Module, ids: list[int]) -> np.ndarray:
    """Return logits [len(ids), vocabulary]."""
    return np.array(model(mx.array([ids]))[0])


def greedy(model: nn.Module, prompt: list[int]) -> list[int]:
    """Return the greedy continuation, without the end of the turn."""
    answer = []
    for token, _ in generate_step(mx.array(prompt), model, max_tokens=LONGEST_ANSWER):
        if int(token) == IM_END:
            break
        answer.append(int(token))
    return answer


def held_out_losses(model: nn.Module, corpus: Corpus, count: int) -> dict[str, float]:
    """Return the cross entropy in nats per token: of answers, of repeated random tokens, of library
    code.
    """
    losses = {}
    for kind, _ in MIX:
        found: list[float] = []
        for _ in range(count):
            document = corpus.document(kind, 384)
            if len(document.ids) < 2:  # the window began at the end of a file
                continue
            counted = np.array(document.weights[1:])
            scores = logits(model, document.ids[:-1])
            scores = scores - scores.max(-1, keepdims=True)
            chosen = scores[np.arange(len(scores)), document.ids[1:]] - np.log(
                np.exp(scores).sum(-1)
            )
            found.extend(-chosen[counted == counted.max()])
        losses[kind] = round(float(np.mean(found)), 4)
    return losses


def exact_answers(
    model: nn.Module, tokenizer: Tokenizer, library: Library, count: int
) -> dict[str, float]:
    """Return the share of exact greedy answers for each task."""
    corpus = Corpus(tokenizer, library, SEED)
    tasks: dict[str, Iterable[Dialogue]] = {
        kind.__name__: (edit_of_kind(kind, corpus.rng, library) for _ in range(count))
        for kind in EDIT_KINDS
    }
    tasks["two turns"] = (two_turns(corpus) for _ in range(count))
    for kind in ("text", "tool", "sum", "talk"):
        tasks[kind] = (corpus.dialogue(kind, 512) for _ in range(count))
    shares = {}
    for name, conversations in tasks.items():
        right = []
        for dialogue in tqdm(conversations, desc=name, total=count, mininterval=5):
            prompt, expected = question_and_answer(dialogue)
            answer = greedy(model, tokenizer.encode(prompt).ids)
            right.append(tokenizer.decode(answer, skip_special_tokens=False) == expected)
        shares[name] = round(float(np.mean(right)), 3)
    return shares


def edit_of_kind(
    kind: Callable[[random.Random, str], edits.Edit | None], rng: random.Random, library: Library
) -> Dialogue:
    """Return one turn that asks for this edit, of a function that it applies to."""
    while True:
        code = library.code(rng)
        edit = kind(rng, code)
        if edit is not None:
            return Dialogue(
                [user(f"{edit.request}\n\n{fence(code)}"), assistant(fence(edit.result))]
            )


def two_turns(corpus: Corpus) -> Dialogue:
    """Return two turns; the second edits the answer to the first."""
    while True:
        dialogue = corpus.dialogue("edit", 512)
        if sum(message["role"] == "user" for message in dialogue.messages) == 2:
            return dialogue


def question_and_answer(dialogue: Dialogue) -> tuple[str, str]:
    """Return the prompt for the last answer, as a server renders it, and that answer."""
    chat = Chat()
    *before, last = dialogue.messages
    thinks = bool(last["reasoning_content"])
    prompt = chat.render(before, dialogue.tools, add_generation_prompt=True, enable_thinking=thinks)
    full = chat.render(dialogue.messages, dialogue.tools)
    return prompt, full[len(prompt) :].rsplit(SPECIAL[IM_END], 1)[0]


def acceptance(
    target: nn.Module, draft: nn.Module, tokenizer: Tokenizer, library: Library, count: int
) -> dict[str, dict[str, list[float]]]:
    """Return acceptance along the target's greedy answers: how often draft tokens 1 … ``DEPTH`` are
    all accepted.

    Counted at every token of an answer. A later draft token only counts after accepted ones, so the
    draft model sees the target's own text, and one pass over the whole answer gives every position.
    """
    corpus = Corpus(tokenizer, library, SEED)
    sources: dict[str, Callable[[], Dialogue]] = {
        "repeat": lambda: edit_of_kind(edits.repeat, corpus.rng, library),
        "rename": lambda: edit_of_kind(edits.rename, corpus.rng, library),
        "edits as trained": lambda: corpus.dialogue("edit", 512),
        "tool": lambda: corpus.dialogue("tool", 512),
        "sum": lambda: corpus.dialogue("sum", 512),
    }
    report = {}
    for name, source in sources.items():
        by_draft: list[list[bool]] = [[] for _ in range(DEPTH)]
        by_lookup: list[list[bool]] = [[] for _ in range(DEPTH)]
        for _ in range(count):
            prompt = tokenizer.encode(question_and_answer(source())[0]).ids
            ids = [*prompt, *greedy(target, prompt), IM_END]
            guesses = logits(draft, ids[:-1]).argmax(-1)[len(prompt) - 1 :]
            _count_runs(by_draft, guesses == np.array(ids[len(prompt) :]))
            found = [look_up(ids[:at]) == ids[at] for at in range(len(prompt), len(ids))]
            _count_runs(by_lookup, np.array(found))
        report[name] = {"draft": _shares(by_draft), "lookup": _shares(by_lookup)}
    return report


def _count_runs(counts: list[list[bool]], right: np.ndarray) -> None:
    for depth in range(DEPTH):
        counts[depth].extend(right[at : at + depth + 1].all() for at in range(len(right) - depth))


def _shares(counts: list[list[bool]]) -> list[float]:
    return [round(float(np.mean(count)), 3) for count in counts]


def look_up(ids: list[int]) -> int | None:
    """Return what followed the last ``LOOKUP_MATCH`` tokens at their previous occurrence."""
    suffix = ids[-LOOKUP_MATCH:]
    for at in range(len(ids) - LOOKUP_MATCH - 1, -1, -1):
        if ids[at : at + LOOKUP_MATCH] == suffix:
            return ids[at + LOOKUP_MATCH]
    return None


if __name__ == "__main__":
    main()
