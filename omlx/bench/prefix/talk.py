"""What is asked: one long prefix twice, and a conversation as an agent has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from statistics import median
from typing import Any

from omlx.bench.prefix.servers import Answer, Message, Server
from omlx.bench.result import Json

TEXT = Path(__file__).parents[1] / "texts" / "functions.txt"


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds to the first token by trial: of a prompt never seen, and of another with the same prefix."""

    cold: tuple[float, ...]
    hit: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return median(hit / cold for hit, cold in zip(self.hit, self.cold, strict=True))

    def to_json(self) -> Json:
        return {"cold_s": list(self.cold), "hit_s": list(self.hit), "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class Talk:
    """Tokens of prompts by turn: in all, computed, and those behind the longest start that an earlier turn had."""

    prompt: tuple[int, ...]
    computed: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def ratio(self) -> float:
        return sum(self.computed) / sum(self.new)

    def to_json(self) -> Json:
        turns = {
            "prompt": list(self.prompt),
            "computed": list(self.computed),
            "new": list(self.new),
        }
        return {**turns, "ratio": self.ratio}


def first_tokens(
    servers: Sequence[Server], tokenizer: Any, tokens: int, trials: int
) -> dict[str, FirstToken]:
    """Servers take turns within a trial. One trial more warms them up."""
    taken: dict[str, list[tuple[float, float]]] = {server.name: [] for server in servers}
    for trial in range(trials + 1):
        system = {"role": "system", "content": _text(tokenizer, f"Trial {trial}.\n", tokens)}
        for server in servers:
            cold = server.ask(
                [system, {"role": "user", "content": "Describe the first function."}], 1
            )
            hit = server.ask([system, {"role": "user", "content": "Name the last one."}], 1)
            if trial:
                taken[server.name].append((cold.seconds, hit.seconds))
    return {name: FirstToken(*zip(*pairs, strict=True)) for name, pairs in taken.items()}


def converse(server: Server, tokenizer: Any, turns: int, max_tokens: int) -> Talk:
    """A system prompt, then each turn's answer with the result of a tool behind it."""
    messages: list[Message] = [
        {"role": "system", "content": _text(tokenizer, "You edit files.\n", 400)}
    ]
    seen: list[list[int]] = []
    counts: list[tuple[int, int, int]] = []
    for turn, result in enumerate(islice(_results(), turns)):
        messages.append({"role": "user", "content": f"Result {turn}:\n{result}"})
        tokens: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        answer: Answer = server.ask(messages, max_tokens)
        new = len(tokens) - max((_common(tokens, before) for before in seen), default=0)
        counts.append((answer.prompt, answer.computed, new))
        messages.append({"role": "assistant", "content": answer.text})
        seen.append([*tokens, *tokenizer.encode(answer.text, add_special_tokens=False)])
    return Talk(*zip(*counts, strict=True))


def _text(tokenizer: Any, start: str, tokens: int) -> str:
    """About so many tokens, that begin with `start`."""
    source = TEXT.read_text(encoding="utf-8")
    ids: list[int] = tokenizer.encode(source, add_special_tokens=False)
    while len(ids) < tokens:
        ids += ids
    return start + str(tokenizer.decode(ids[:tokens]))


def _results() -> Iterator[str]:
    """What a tool says: a function of the text each time."""
    while True:
        yield from TEXT.read_text(encoding="utf-8").split("\n\n")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
