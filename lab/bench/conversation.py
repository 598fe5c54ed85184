"""What the servers are asked: a long prefix twice, and a conversation as an agent has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from lab.bench.http.server import Message, Server, call
from omlx.bench.console import Json
from omlx.measure.sample import first_difference
from omlx.measure.spread import Series
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
