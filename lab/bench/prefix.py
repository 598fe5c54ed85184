"""`python -m lab.bench prefix`: prefix caches of omlx and of mlx-lm's server, side by side.

Measures the time to first token, cold and with a cached prefix, and how many prompt tokens an
agent's conversation computes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load

from lab.bench import inflate
from lab.bench.console import Json, add, environment, positive, table, write_json
from lab.bench.http.server import Message, Server, call, free_port, omlx_server, running
from lab.bench.series import Series
from lab.bench.subject import flat_parameters, parameter_count
from omlx.measure.sample import first_difference
from omlx.measure.texts import TEXTS, read_sections

TEXT = TEXTS / "functions.txt"


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` until it was complete; `computed` of its `prompt` tokens were not in a cache."""

    text: str
    seconds: float
    prompt: int
    computed: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token by trial: with a new prompt, and with a cached prefix."""

    cold: Series
    hit: Series

    @property
    def ratio(self) -> float:
        return self.hit.over(self.cold).median

    def to_json(self) -> Json:
        times = {"cold_s": list(self.cold.values), "hit_s": list(self.hit.values)}
        return {**times, "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Prompt tokens by turn: all, computed, and those after the longest earlier prefix."""

    prompt: tuple[int, ...]
    computed: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """Computed / new tokens: 1 for a perfect prefix cache."""
        return sum(self.computed) / sum(self.new)

    def to_json(self) -> Json:
        return {
            "prompt": list(self.prompt),
            "computed": list(self.computed),
            "new": list(self.new),
            "ratio": self.ratio,
        }


def first_tokens(
    servers: Sequence[Server], tokenizer: Any, tokens: int, trials: int
) -> dict[str, FirstToken]:
    """Measure both prompts on all servers, in turns. One trial more warms up."""
    cold: dict[str, list[float]] = {server.name: [] for server in servers}
    hit: dict[str, list[float]] = {server.name: [] for server in servers}
    first = {"role": "user", "content": "Describe the first function."}
    second = {"role": "user", "content": "Name the last one."}
    for trial in range(trials + 1):
        text = _text(tokenizer, f"Trial {trial}.\n", tokens)
        system = {"role": "system", "content": text}
        for server in servers:
            cold_s = ask(server, [system, first], 1).seconds
            hit_s = ask(server, [system, second], 1).seconds
            if trial:
                cold[server.name].append(cold_s)
                hit[server.name].append(hit_s)
    times = {}
    for name in cold:
        times[name] = FirstToken(Series(tuple(cold[name])), Series(tuple(hit[name])))
    return times


def converse(
    answer_to: Callable[[Sequence[Message]], Answer], tokenizer: Any, turns: int
) -> Conversation:
    """Hold a conversation: a system prompt, then the result of a tool in each turn."""
    system = _text(tokenizer, "You edit files.\n", 400)
    messages: list[Message] = [{"role": "system", "content": system}]
    seen: list[list[int]] = []
    prompt, computed, new = [], [], []
    results = cycle(read_sections("functions.txt", "\n\n"))
    for turn, result in enumerate(islice(results, turns)):
        messages.append({"role": "user", "content": f"Result {turn}:\n{result}"})
        tokens: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        answer = answer_to(messages)
        prompt.append(answer.prompt)
        computed.append(answer.computed)
        new.append(len(tokens) - max((_shared(tokens, earlier) for earlier in seen), default=0))
        messages.append({"role": "assistant", "content": answer.text})
        seen.append([*tokens, *tokenizer.encode(answer.text, add_special_tokens=False)])
    return Conversation(tuple(prompt), tuple(computed), tuple(new))


def ask(server: Server, messages: Sequence[Message], max_tokens: int) -> Answer:
    """Return the greedy answer of at most `max_tokens` tokens to a conversation."""
    body = {
        "model": server.model,
        "messages": list(messages),
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    started = time.perf_counter()
    response = call(server.port, "POST", "/v1/chat/completions", body)
    seconds = time.perf_counter() - started
    usage = response["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    text = response["choices"][0]["message"].get("content") or ""
    return Answer(text, seconds, usage["prompt_tokens"], usage["prompt_tokens"] - cached)


def _text(tokenizer: Any, start: str, tokens: int) -> str:
    """Return about `tokens` tokens of text after `start`."""
    source = TEXT.read_text(encoding="utf-8")
    ids: list[int] = tokenizer.encode(source, add_special_tokens=False)
    while len(ids) < tokens:
        ids += ids
    return start + str(tokenizer.decode(ids[:tokens]))


def _shared(tokens: Sequence[int], earlier: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    place = first_difference(tokens, earlier)
    return len(tokens) if place is None else place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to `parser`."""
    add(parser, "--model", "--json")
    inflate.add_arguments(parser, draft=False)
    for flag, default, text in (
        ("--prefix", 2000, "tokens that two prompts share"),
        ("--trials", 5, "default %(default)s"),
        ("--turns", 20, "of the conversation"),
        ("--tokens", 32, "longest answer of a turn"),
    ):
        parser.add_argument(flag, type=positive, default=default, metavar="N", help=text)
    parser.add_argument("--alone", action="store_true", help="without mlx-lm's server")


def run(args: argparse.Namespace) -> int:
    """Measure, write the file, print the tables."""
    load_before = os.getloadavg()
    with side_by_side(args.model, args.inflate, alone=args.alone) as (servers, model):
        parameters, tokenizer = model
        firsts = first_tokens(servers, tokenizer, args.prefix, args.trials)
        talks = {}
        for server in servers:
            answer_to = partial(ask, server, max_tokens=args.tokens)
            talks[server.name] = converse(answer_to, tokenizer, args.turns)
    names = ("prefix", "trials", "turns", "tokens", "inflate")
    report: Json = {
        **environment(load_before),
        "model": {"name": args.model.name, "parameters": parameters},
        "settings": {name: getattr(args, name) for name in names},
        "first_token": {name: times.to_json() for name, times in firsts.items()},
        "conversation": {name: talk.to_json() for name, talk in talks.items()},
    }
    write_json(args.json, report)
    sys.stdout.write(to_text(firsts, talks))
    return 0


@contextmanager
def side_by_side(
    source: Path, inflate_to: int, *flags: str, speculation: str = "off", alone: bool = False
) -> Iterator[tuple[list[Server], tuple[int, Any]]]:
    """Serve a model as `write_model` writes it with omlx, and unless `alone` with mlx-lm.

    Yields the servers, omlx first, and what `write_model` returns. `flags` are of `omlx serve`.
    """
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as work, ExitStack() as stack:
        folder, home = Path(work) / source.name, Path(work) / "home"
        model = write_model(source, folder, inflate_to)
        ours = omlx_server(folder, home, *flags, speculation=speculation)
        servers = [stack.enter_context(ours)]
        if not alone:
            servers.append(stack.enter_context(mlx_lm_server(folder)))
        yield servers, model


@contextmanager
def mlx_lm_server(folder: Path) -> Iterator[Server]:
    """Serve a model with mlx-lm."""
    port = free_port()
    flags = ("--model", str(folder), "--port", str(port), "--host", "127.0.0.1")
    with running(["mlx_lm", "server", *flags], port) as pid:
        yield Server("mlx-lm", port, str(folder), pid)


def write_model(source: Path, folder: Path, inflate_to: int) -> tuple[int, Any]:
    """Write the model as float32, with at least `inflate_to` parameters, for both servers to load.

    Returns its parameter count and its tokenizer.
    """
    model, tokenizer, *_ = load(str(source))
    model.set_dtype(mx.float32)
    inflate.inflate(model, inflate_to)
    ignored = shutil.ignore_patterns("model*.safetensors*", "model-package.json")
    shutil.copytree(source, folder, ignore=ignored)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": len(model.layers), "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = dict(flat_parameters(model))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return parameter_count(model), tokenizer


def to_text(firsts: Mapping[str, FirstToken], talks: Mapping[str, Conversation]) -> str:
    times: list[Sequence[str]] = [
        ("first token", "cold, ms (least)", "hit, ms (least)", "hit / cold (median)")
    ]
    for name, first in firsts.items():
        cold, hit = 1000 * first.cold.least, 1000 * first.hit.least
        times.append((name, f"{cold:.1f}", f"{hit:.1f}", f"{100 * first.ratio:.2f} %"))
    turns: list[Sequence[str]] = [
        ("conversation", "tokens of prompts", "computed", "new", "computed / new")
    ]
    for name, talk in talks.items():
        sums = (str(sum(counts)) for counts in (talk.prompt, talk.computed, talk.new))
        turns.append((name, *sums, f"{talk.ratio:.3f}"))
    return f"{table(times)}\n\n{table(turns)}\n"
