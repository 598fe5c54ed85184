"""``python -m training.speak``: synthesis, training and measurement, each for a time.

Writes draft.*.safetensors, head-*.safetensors, metrics.json and held_out.npz, again and again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training.speak.evaluate import acceptance, coverage, cut, quantized
from training.speak.loop import PROMPT_WEIGHT, train
from training.speak.students import Draft, Head, draft_config
from training.speak.synthesis import (
    ASSISTANT,
    DOCUMENT,
    USER,
    Headers,
    Prompt,
    Texts,
    read_texts,
    save_texts,
    synthesize,
)
from training.speak.target import Target, read_folder

STARTED = time.monotonic()
TEMPERATURES = ((0.0, 0.45), (0.6, 0.35), (0.9, 0.20))
SERVED_TEMPERATURES = ((0.0, 0.7), (0.7, 0.3))
SHARES, SERVED_SHARES, HELD_OUT_SHARES = (50, 42, 8), (80, 20, 0), (80, 20, 0)
"""Of requests, of requests the target thinks up, and of documents to continue."""
DOCUMENT_WEIGHT = 0.5
SAVE_EVERY_S = 45


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.speak", description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of the model")
    parser.add_argument("--data", type=Path, required=True, help="folder of training.speak.data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--synthesis", type=float, default=95, help="seconds")
    parser.add_argument("--train", type=float, default=215, help="seconds")
    parser.add_argument("--end", type=float, default=360, help="seconds from the start, at most")
    parser.add_argument("--batch", type=int, default=2048, help="texts synthesized at once")
    parser.add_argument("--rows", type=int, default=32, help="texts of a training step")
    parser.add_argument("--length", type=int, default=640, help="tokens of a text")
    parser.add_argument("--held-out", type=int, default=512, help="texts to measure with")
    parser.add_argument("--shortlist", type=int, default=12288)
    parser.add_argument("--served", action="store_true", help="mostly answers at temperature 0")
    parser.add_argument("--no-draft", action="store_true", help="heads alone")
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="texts-*.npz to add")
    parser.add_argument("--start", type=Path, help="head-1.safetensors of an earlier run")
    parser.add_argument("--documents", type=float, default=0.11, help="share of synthesis")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--head-layers", default="1,2", help="layers of each head that is trained")
    parser.add_argument("--width", type=int, default=192, help="of the draft model")
    parser.add_argument("--layers", type=int, default=4, help="of the draft model")
    parser.add_argument("--inner", type=int, default=640, help="of the draft model's MLPs")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="everything in a minute or two, with the target's first two layers",
    )
    options = parser.parse_args()
    if options.smoke:
        options.synthesis, options.train, options.end = 10, 20, 400
        options.batch, options.rows, options.length, options.held_out = 8, 4, 64, 4
    options.out.mkdir(parents=True, exist_ok=True)
    Run(options).run()


class Run:
    """One run: its data, models and figures."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rng = random.Random(0)
        torch.manual_seed(0)
        if options.threads:
            torch.set_num_threads(options.threads)
        torch.backends.cuda.matmul.allow_tf32 = True
        gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if gpu else "cpu")
        config, weights = read_folder(options.target)
        if options.smoke:
            config["num_hidden_layers"] = 2
        self.target = Target(config, weights, self.device, torch.bfloat16)
        with np.load(options.data / "data.npz") as file:
            self.data = {name: file[name] for name in file.files}
        self.about = json.loads((options.data / "data.json").read_text(encoding="utf-8"))
        self.headers = Headers(self.about["user_header"], self.about["assistant_header"])
        self.kinds: list[str] = [*self.about["kinds"], "asked itself", "document"]
        name = torch.cuda.get_device_name() if gpu else "CPU"
        self.metrics: dict[str, Any] = {
            "device": name,
            "torch": torch.__version__,
            "phases": {},
            "training": [],
            "options": {key: str(value) for key, value in vars(options).items()},
        }
        self.saved = 0.0
        self.students: dict[str, nn.Module] = {}

    def run(self) -> None:
        self.say("loaded", device=self.metrics["device"])
        texts, held_out = self.synthesis()
        self.phase("synthesis")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # of the caches of keys and values
        tokens, weights, hidden = self.relabelled(texts, held_out)
        self.build()
        self.write_held_out(held_out)
        options = self.options
        left = options.end - (time.monotonic() - STARTED)
        seconds = min(options.train, left - 0.1 * options.end)
        train(
            self.target,
            self.students,
            tokens,
            weights,
            hidden,
            options.rows,
            seconds,
            self.progress,
        )
        self.save()
        self.phase("training")
        self.measure(held_out)
        self.phase("measurement")
        self.say("done")

    def synthesis(self) -> tuple[list[Texts], Texts]:
        """Return texts, in rounds as long as the time suffices, and those held out."""
        options = self.options
        begin = time.monotonic()
        deadline = begin + options.synthesis
        aside = self.prompts(options.held_out, held_out=True)
        held_out = synthesize(
            self.target, aside, self.headers, options.length, time.monotonic() + 10 * 60
        )
        self.say("held out", texts=len(aside), tokens=held_out.tokens.numel())
        rounds: list[Texts] = []
        longest = 0.0
        while not rounds or time.monotonic() + longest < deadline:
            started = time.monotonic()
            prompts = self.prompts(options.batch, held_out=False)
            until = max(deadline, started + 20)
            rounds.append(synthesize(self.target, prompts, self.headers, options.length, until))
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            longest = max(longest, time.monotonic() - started)
            save_texts(rounds[-1], options.out / f"texts-{len(rounds)}.npz")
            made = sum(texts.tokens.numel() for texts in rounds)
            rate = round(rounds[-1].tokens.numel() / (time.monotonic() - started))
            self.say("synthesis", round=len(rounds), tokens=made, per_s=rate)
        return rounds + [read_texts(self.target, file) for file in options.texts], held_out

    def prompts(self, count: int, *, held_out: bool) -> list[Prompt]:
        """Return prompts: requests, texts to continue, and headers for requests of its own."""
        data, rng, prompts = self.data, self.rng, []
        fits = data["held_out"] == held_out
        served = self.options.served
        heats = SERVED_TEMPERATURES if served else TEMPERATURES
        shares = SERVED_SHARES if served else SHARES
        by_kind = [np.flatnonzero(fits & (data["kinds"] == i)) for i in range(len(self.kinds) - 2)]
        for _ in range(count):
            chances, warmths = zip(*((share, heat) for heat, share in heats), strict=True)
            heat = 0.0 if held_out else rng.choices(warmths, chances)[0]
            kind = rng.choices((0, 1, 2), HELD_OUT_SHARES if held_out else shares)[0]
            if kind == 0:
                i = int(rng.choice(rng.choice(by_kind)))
                tokens = data["prompts"][data["starts"][i] : data["starts"][i + 1]]
                prompts.append(Prompt(tokens, int(data["kinds"][i]), ASSISTANT, heat))
            elif kind == 1:
                tokens = np.array(self.about["opening"])
                prompts.append(Prompt(tokens, len(self.kinds) - 2, USER, heat))
            else:
                at = rng.randrange(len(data["documents"]) - 200)
                tokens = data["documents"][at : at + rng.randint(32, 128)]
                prompts.append(Prompt(tokens, len(self.kinds) - 1, DOCUMENT, heat))
        return prompts

    def relabelled(self, rounds: list[Texts], held_out: Texts) -> tuple[Tensor, Tensor, Tensor]:
        """Number tokens by frequency, everywhere; return tokens, weights and states."""
        length = held_out.tokens.shape[1]
        rounds = [texts for texts in rounds if texts.tokens.shape[1] == length] or rounds[:1]
        tokens = torch.cat([texts.tokens for texts in rounds])
        spoken = torch.cat([texts.spoken for texts in rounds])
        vocabulary = len(self.target.embeddings)
        counts = torch.bincount(tokens[spoken], minlength=vocabulary).float()
        counts += 0.02 * torch.bincount(tokens.flatten(), minlength=vocabulary)
        self.order = counts.argsort(descending=True, stable=True)
        self.ranks = torch.empty_like(self.order)
        self.ranks[self.order] = torch.arange(vocabulary, device=self.device)
        self.target.relabel(self.order)
        weights = torch.where(spoken, 1.0, PROMPT_WEIGHT)
        says_document = np.concatenate([texts.kinds for texts in rounds]) == len(self.kinds) - 1
        weights[torch.from_numpy(says_document).to(self.device)] = DOCUMENT_WEIGHT
        width = tokens.shape[1]
        whole = self.data["documents"].astype(np.int64)
        whole = torch.from_numpy(whole[: len(whole) // width * width]).to(self.device)
        documents = whole.view(-1, width)[: int(len(tokens) * self.options.documents)]
        tokens = torch.cat([self.ranks[tokens], self.ranks[documents]]).int()
        hidden = torch.cat(
            [*(texts.hidden for texts in rounds), self.target.states(tokens[-len(documents) :])]
        )
        weights = torch.cat([weights, torch.full_like(documents, 1).float() * DOCUMENT_WEIGHT])
        held_out.tokens.copy_(self.ranks[held_out.tokens])
        shortlists = (2048, 4096, 8192, self.options.shortlist, 16384)
        self.metrics["coverage"] = {n: coverage(held_out, n) for n in shortlists}
        self.metrics["texts"] = {
            "texts": len(tokens),
            "tokens": tokens.numel(),
            "spoken": int(spoken.sum()),
        }
        self.say("relabelled", **self.metrics["texts"], coverage=self.metrics["coverage"])
        return tokens, weights.half(), hidden

    def build(self) -> None:
        options, target = self.options, self.target
        config = draft_config(target.config, options.width, options.layers, options.inner)
        self.students = {} if options.no_draft else {"draft": Draft(config, target)}
        for layers in (int(count) for count in options.head_layers.split(",")):
            self.students[f"head-{layers}"] = Head(target, layers, options.shortlist)
        if options.start:
            held = load_file(options.start)
            held.pop("draft_token_ids")
            self.students["head-1"].load_state_dict(held)
        for name, student in self.students.items():
            student.to(self.device)
            count = sum(weight.numel() for weight in student.parameters())
            self.say("built", student=name, parameters=count)

    def progress(self, figures: dict[str, Any]) -> None:
        self.metrics["training"].append(figures)
        self.say("training", **figures)
        if time.monotonic() - self.saved > SAVE_EVERY_S:
            self.save()

    def measure(self, held_out: Texts) -> None:
        """Measure every student, as it is and rounded, until the time is over."""
        figures = self.metrics["acceptance"] = {}
        draft = self.students.get("draft")
        heads = [item for item in self.students.items() if item[0] != "draft"]
        jobs = [("draft", lambda: draft)] if draft else []
        jobs += [(name, lambda head=head: head) for name, head in heads]
        for bits in (4, 5, 6):
            jobs += [(f"{n} {bits} bits", lambda h=h, b=bits: quantized(h, b)) for n, h in heads]
        jobs += [
            (f"draft {bits}/{inner} bits", lambda b=bits, i=inner: quantized(draft, i, b))
            for bits, inner in ((4, 4), (4, 6), (3, 6), (4, 8))
            if draft
        ]
        for count in (2048, 4096, 8192):
            jobs += [(f"{n} of {count}", lambda h=h, c=count: cut(h, c)) for n, h in heads]
        for name, make in jobs:
            if time.monotonic() - STARTED > self.options.end:
                self.say("no time to measure", student=name)
                break
            found = acceptance(make(), self.target, held_out, self.kinds)
            figures[name] = found
            self.say("acceptance", student=name, all=found["all"])
            self.write_metrics()

    def save(self) -> None:
        """Replace the weights, in the vocabulary's own order, float16."""
        self.saved = time.monotonic()
        half = len(self.order) // 2
        for name, student in self.students.items():
            state = {k: v.detach() for k, v in student.state_dict().items()}
            if name == "draft":
                embeddings = state.pop("embed_tokens.weight")[self.ranks]
                parts = [{"embeddings.0": embeddings[:half]}]
                parts += [{"embeddings.1": embeddings[half:], **state}]
                for number, part in enumerate(parts):
                    self.write(f"draft-{number + 1}.safetensors", part)
            else:
                shortlist = self.order[: self.options.shortlist].int()
                self.write(f"{name}.safetensors", {**state, "draft_token_ids": shortlist})
        self.write_metrics()

    def write(self, name: str, tensors: dict[str, Tensor]) -> None:
        held = {
            k: (v.half() if v.is_floating_point() else v).contiguous().cpu()
            for k, v in tensors.items()
        }
        part = self.options.out / f"{name}.part"
        save_file(held, part, metadata={"format": "mlx"})
        os.replace(part, self.options.out / name)

    def write_held_out(self, texts: Texts) -> None:
        texts = dataclasses.replace(texts, tokens=self.order[texts.tokens])
        save_texts(texts, self.options.out / "held_out.npz")

    def write_metrics(self) -> None:
        part = self.options.out / "metrics.part"
        part.write_text(json.dumps({**self.metrics, "kinds": self.kinds}, indent=1))
        os.replace(part, self.options.out / "metrics.json")

    def phase(self, name: str) -> None:
        self.metrics["phases"][name] = round(time.monotonic() - STARTED, 1)
        if self.device.type == "cuda":
            self.metrics["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
        self.write_metrics()

    def say(self, what: str, **figures: Any) -> None:
        print(f"{time.monotonic() - STARTED:7.1f} {what} {json.dumps(figures)}", flush=True)


if __name__ == "__main__":
    main()
