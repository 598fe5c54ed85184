"""OpenAI's text completions: events to a JSON body or to chunks. Pure; no I/O."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from math import isnan, nan

from omlx.engine.types import TokenLogprob
from omlx.server.dialects.openai.choices import (
    ChoicesEncoder,
    Head,
    all_logprobs,
    finish_of,
    finish_reason,
)
from omlx.server.request.dialect import Json
from omlx.server.request.logprobs import finite
from omlx.text.events import OutputEvent, TextDelta

_Utf8 = codecs.getincrementaldecoder("utf-8")


class CompletionEncoder(ChoicesEncoder):
    """An answer of `n` choices for each prompt.

    `echoes`: by prompt, the text that its choices begin with.

    `first_tokens`: the first id of each prompt, which has no logprob, where logprobs of an echo are
    requested.
    """

    KIND = CHUNK_KIND = "text_completion"
    CONTENT = "text"
    PROMPT = "prompt"

    def __init__(
        self,
        head: Head,
        n: int,
        echoes: Sequence[str],
        *,
        first_tokens: Sequence[int] = (),
        include_usage: bool = False,
    ) -> None:
        super().__init__(head, n * len(echoes), len(echoes), include_usage=include_usage)
        self._n = n
        self._echoes = echoes
        self._first_tokens = first_tokens
        self._offsets = [0] * self._total
        self._decoders = [_Utf8("replace") for _ in range(self._total)]
        if not first_tokens:  # logprobs begin after the echo
            self._offsets = [len(self._echo(choice)) for choice in range(self._total)]

    def start(self) -> list[Json]:
        return [
            self._chunk(choice, self._echo(choice), self._logprobs(choice, self._first(choice)))
            for choice in range(self._total)
            if self._echo(choice)
        ]

    def _echo(self, choice: int) -> str:
        return self._echoes[choice // self._n]

    def _content(self, event: OutputEvent) -> str:
        return event.text if isinstance(event, TextDelta) else ""

    def _choice(self, index: int, events: Sequence[OutputEvent]) -> Json:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        logprobs = [*self._first(index), *all_logprobs(events)]
        return {
            "index": index,
            "text": self._echo(index) + text,
            "logprobs": self._logprobs(index, logprobs),
            "finish_reason": finish_reason(finish_of(events)),
        }

    def _first(self, choice: int) -> list[TokenLogprob]:
        """The first token of a choice's prompt, without a logprob, if logprobs of the echo are
        requested."""
        if not self._first_tokens:
            return []
        return [TokenLogprob(self._first_tokens[choice // self._n], nan)]

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> Json | None:
        """`text_offset` counts characters of the choice, echo included: those that are complete
        before the token. The first token's logprob is null.
        """
        token_bytes = self._head.token_bytes
        if token_bytes is None or not entries:
            return None
        tokens = [_shown(token_bytes, entry.token) for entry in entries]
        offsets = []
        for entry in entries:
            offsets.append(self._offsets[choice])
            completed = self._decoders[choice].decode(token_bytes(entry.token))
            self._offsets[choice] += len(completed)
        logprobs: list[float | None] = []
        top: list[Json | None] = []
        for entry in entries:
            known = not isnan(entry.logprob)
            logprobs.append(finite(entry.logprob) if known else None)
            top.append(_top(token_bytes, entry) if known else None)
        return {
            "tokens": tokens,
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": offsets,
        }


def _top(token_bytes: Callable[[int], bytes], entry: TokenLogprob) -> Json:
    """Logprobs by text, best first.

    Of tokens with the same text (parts of characters), the best one counts.
    """
    top: Json = {}
    for id, value in entry.top:
        top.setdefault(_shown(token_bytes, id), finite(value))
    return top


def _shown(token_bytes: Callable[[int], bytes], token: int) -> str:
    return token_bytes(token).decode("utf-8", "replace")
