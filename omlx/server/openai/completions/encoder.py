"""OpenAI's text completions, outwards: events to a JSON body or to chunks. Pure; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan, nan

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import OmlxError
from omlx.server import errors
from omlx.server.dialect import ChoiceEvent, Json
from omlx.server.openai.head import Head, finite, reason
from omlx.server.usage import timings, usage
from omlx.text.events import Finish, OutputEvent, PromptLogprobs, TextDelta

KIND = "text_completion"


class CompletionEncoder:
    """An answer of `n` choices for each prompt. `echoes` is what each prompt puts before its choices, if anything.

    `first_tokens` are those of the prompts, where the logprobs of an echo are told: they have none themselves.
    `silent` answers have no tokens: the engine makes one at least, and that one is not told.
    """

    def __init__(
        self,
        head: Head,
        n: int,
        echoes: Sequence[str],
        *,
        first_tokens: Sequence[int] = (),
        silent: bool = False,
        include_usage: bool = False,
    ) -> None:
        self._head = head
        self._n = n
        self._echoes = echoes
        self._total = n * len(echoes)
        self._silent = silent
        self._include_usage = include_usage
        self._finishes: dict[int, Finish] = {}
        self._first_tokens = first_tokens
        self._offsets = [
            0 if first_tokens else len(echoes[choice // n]) for choice in range(self._total)
        ]

    def start(self) -> list[Json]:
        texts = [(choice, self._echoes[choice // self._n]) for choice in range(self._total)]
        return [
            self._chunk(choice, text, self._logprobs(choice, self._first(choice)))
            for choice, text in texts
            if text
        ]

    def feed(self, events: Sequence[ChoiceEvent]) -> list[Json]:
        return [
            chunk for each in self._heard(events) for chunk in self._encode(each.choice, each.event)
        ]

    def failed(self, error: OmlxError) -> list[Json]:
        return [errors.openai(error, "prompt")]

    def body(self, events: Sequence[ChoiceEvent]) -> Json:
        by_choice: dict[int, list[OutputEvent]] = {choice: [] for choice in range(self._total)}
        for each in self._heard(events):
            by_choice[each.choice].append(each.event)
        choices = [self._choice(index, by_choice[index]) for index in by_choice]
        finishes = [
            event for index in by_choice for event in by_choice[index] if isinstance(event, Finish)
        ]
        return self._head.body(KIND, choices) | self._told(finishes)

    def _heard(self, events: Sequence[ChoiceEvent]) -> Sequence[ChoiceEvent]:
        if not self._silent:
            return events
        kept = [each for each in events if isinstance(each.event, PromptLogprobs | Finish)]
        return [ChoiceEvent(each.choice, _without_tokens(each.event)) for each in kept]

    def _encode(self, choice: int, event: OutputEvent) -> list[Json]:
        text = event.text if isinstance(event, TextDelta) else ""
        logprobs = self._logprobs(choice, event.logprobs)
        if not isinstance(event, Finish):
            return [self._chunk(choice, text, logprobs)] if text or logprobs else []
        self._finishes[choice] = event
        chunks = [self._chunk(choice, text, logprobs, reason(event))]
        if len(self._finishes) == self._total:
            told = self._told([self._finishes[i] for i in range(self._total)])
            if self._include_usage:
                chunks.append(self._head.body(KIND, []) | {"usage": told["usage"]})
            chunks[-1]["timings"] = told["timings"]
        return chunks

    def _chunk(
        self, choice: int, text: str, logprobs: Json | None = None, why: str | None = None
    ) -> Json:
        entry = {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": why}
        chunk = self._head.body(KIND, [entry])
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        logprobs = [*self._first(index), *(entry for event in events for entry in event.logprobs)]
        finish = next(event for event in events if isinstance(event, Finish))
        return {
            "index": index,
            "text": self._echoes[index // self._n] + text,
            "logprobs": self._logprobs(index, logprobs),
            "finish_reason": reason(finish),
        }

    def _told(self, finishes: Sequence[Finish]) -> Json:
        prompts = len(self._echoes)
        return {"usage": usage(finishes, prompts), "timings": timings(finishes, prompts)}

    def _first(self, choice: int) -> list[TokenLogprob]:
        return (
            [TokenLogprob(self._first_tokens[choice // self._n], nan)] if self._first_tokens else []
        )

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> Json | None:
        """`text_offset` counts characters of what is said here, echo included. What has no logprob is null."""
        token_bytes = self._head.token_bytes
        if token_bytes is None or not entries:
            return None
        tokens = [_shown(token_bytes, entry.token) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [
                None if isnan(entry.logprob) else finite(entry.logprob) for entry in entries
            ],
            "top_logprobs": [
                None if isnan(entry.logprob) else _top(token_bytes, entry) for entry in entries
            ],
            "text_offset": offsets,
        }


def _without_tokens(event: OutputEvent) -> OutputEvent:
    if not isinstance(event, Finish):
        return event
    return Finish(FinishReason.LENGTH, replace(event.stats, predicted_n=0, predicted_ms=0.0))


def _top(token_bytes: Callable[[int], bytes], entry: TokenLogprob) -> Json:
    """By text, best first. Two tokens may look alike (parts of characters do): the better one has the name."""
    told: Json = {}
    for id, value in entry.top:
        told.setdefault(_shown(token_bytes, id), finite(value))
    return told


def _shown(token_bytes: Callable[[int], bytes], token: int) -> str:
    return token_bytes(token).decode("utf-8", "replace")
