"""A model that spells the text of the prompt: everything is real but its weights.

It answers with the text of the last message that is not its own: a test sends the expected output,
markup included, as the user's message. After a tool call it repeats the result. It reads the ids
from a real KV cache of one layer, so batching, prefix caches and rollbacks work as usual.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import partial
from itertools import pairwise
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer, tokenizer_length
from omlx.models.pool.load_weights import LoadedModel, LoadOptions, LoadSteps, probe
from omlx.models.pool.opening import Dtype, LoadProgress
from omlx.models.pool.pool import build_pool

CONTEXT = 4096
SURE = 100.0
NO_THOUGHT = "<think>\n\n</think>\n\n"


class Spelling(nn.Module):
    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._size = tokenizer_length(tokenizer)
        self._begin, self._end = (self._ids(text)[0] for text in ("<|im_start|>", "<|im_end|>"))
        self._header = self._ids("assistant\n")

    def make_cache(self) -> list[Any]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> mx.array:
        rows = tokens[:, None, :, None].astype(mx.float32)  # [rows, 1, tokens, 1]
        known, _ = cache[0].update_and_fetch(rows, rows)
        width, histories = tokens.shape[1], known[:, 0, :, 0].astype(mx.int32).tolist()
        following = [self._follow(row, width) for row in histories]
        return mx.where(mx.arange(self._size) == mx.array(following)[..., None], SURE, 0.0)

    def _follow(self, known: list[int], width: int) -> list[int]:
        """The next token after each of the last `width` tokens."""
        begins = [at for at, token in enumerate(known) if token == self._begin]
        lengths = range(len(known) - width + 1, len(known) + 1)
        return [self._next(known, n, begins[: bisect_left(begins, n)]) for n in lengths]

    def _next(self, known: list[int], n: int, begins: list[int]) -> int:
        """The next token after the first `n`; `begins`: the positions at which messages begin."""
        if (
            len(begins) < 2
            or self._header != known[(start := begins[-1] + 1) : min(n, start + len(self._header))]
        ):
            return self._end
        said = known[start + len(self._header) : n]
        script = self._says([known[one + 1 : other] for one, other in pairwise(begins)])
        # The template or the server has begun the answer, in tokens of its own.
        if script[: len(said)] != said:
            script = self._opened(script, said)
        return script[len(said)] if len(script) > len(said) else self._end

    def _says(self, messages: list[list[int]]) -> list[int]:
        """The answer to a conversation, in tokens."""
        return self._script(messages[-1])

    def _script(self, message: list[int]) -> list[int]:
        """The tokens of a message without its role and its end."""
        text = str(self._tokenizer.decode(message))
        return self._ids(text.partition("\n")[2].rpartition("<|im_end|>")[0])

    def _opened(self, script: list[int], said: list[int]) -> list[int]:
        """The rest of the script after `said`; reasoning that was begun for a text without it is
        ended first."""
        texts = [str(self._tokenizer.decode(said[: n + 1])) for n in range(len(said))]
        whole = str(self._tokenizer.decode(script))
        if whole.startswith(texts[-1]):
            return said + self._ids(whole.removeprefix(texts[-1]))
        if NO_THOUGHT in texts:
            return said[: texts.index(NO_THOUGHT) + 1] + script
        if NO_THOUGHT.startswith(texts[-1]):
            return said + self._ids(NO_THOUGHT.removeprefix(texts[-1])) + script
        return said

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


class Obedient(Spelling):
    """Makes the calls that a user message contains, and repeats their results."""

    def _says(self, messages: list[list[int]]) -> list[int]:
        for message in reversed(messages):
            text = str(self._tokenizer.decode(message))
            if "<tool_response>" in text:
                return self._script(message)
            if text.startswith("user\n") and (
                found := re.search("<tool_call>.*</tool_call>", text, re.DOTALL)
            ):
                return self._ids(found[0])
        return []


def read(
    entry: ModelEntry,
    dtype: Dtype,
    options: LoadOptions,
    *,
    kind: type[Spelling] = Spelling,
    context: int = CONTEXT,
) -> LoadSteps:
    """A model that spells, with the tokenizer and template of the entry; it has no vision tower,
    and a cache of its own for any bits.
    """
    yield LoadProgress(0, 0)
    tokenizer = options.tokenizer or read_tokenizer(entry)
    model = kind(tokenizer)
    facts = yield from probe(model, tokenizer_length(tokenizer))
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        context_length=context,
        vocab_size=tokenizer_length(tokenizer),
        stop_ids=frozenset(tokenizer.eos_token_ids),
        sampling={},
        facts=facts,
        size_bytes=0,
        library=options.library,
        kv_bits=options.kv_bits,
    )


spelling_pool = partial(build_pool, read=read)
"""Builds a pool in which every model spells."""

obedient_pool = partial(build_pool, read=partial(read, kind=Obedient, context=1 << 17))
"""Builds a pool for programs that have long instructions of their own."""
