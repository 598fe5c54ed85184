"""Builders for tests of tool calls: functions, masks, walks along a mask, outputs as clients get
them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.text.grammar import GrammarCompiler, Preamble
from omlx.text.mask import GrammarMask
from omlx.text.tools import ToolUse
from tests.schemas import Schema
from tests.templates.parsing import parse
from tests.text.tokenizers import CHATML, SPECIAL, decode_byte_level

Calls = list[tuple[str, Any]]


def use(schemas: Mapping[str, Schema], **more: Any) -> ToolUse:
    """Return functions by name and schema of their parameters."""
    functions = ({"name": name, "parameters": schema} for name, schema in schemas.items())
    return ToolUse(tuple({"type": "function", "function": each} for each in functions), **more)


def family(
    folder: Path, words: str, tokens: Sequence[str] = (), template: str = CHATML
) -> TokenizerWrapper:
    """Return a tokenizer whose template has some words, and that has some texts as tokens."""
    comment = "{% raw %}{# " + words + " #}{% endraw %}"
    return decode_byte_level(folder, comment + template, tuple(dict.fromkeys((*SPECIAL, *tokens))))


def grammars(tokenizer: TokenizerWrapper) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


def mask(tokenizer: TokenizerWrapper, use: ToolUse, **preamble: Any) -> GrammarMask:
    of = grammars(tokenizer)
    calls = of.compile_tool_calls(use)
    assert calls is not None
    if use.forced:
        return of.mask(calls, Preamble(**preamble))
    return of.mask(None, Preamble(may_call=True, calls=calls, **preamble))


def ids_of(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    return [int(each) for each in tokenizer.encode(text, add_special_tokens=False)]


def allowed(of: GrammarMask) -> list[int]:
    bits = of.bits()
    assert bits is not None
    return [i for i in range(8 * len(bits)) if bits[i // 8] >> i % 8 & 1]


def say(of: GrammarMask, tokenizer: TokenizerWrapper, text: str) -> list[int]:
    tokens = ids_of(tokenizer, text)
    for token in tokens:
        assert of.advance(token), tokenizer.decode(of.tokens)
    return tokens


def walk(of: GrammarMask, tokenizer: TokenizerWrapper, seed: int, closing: str = "") -> list[int]:
    """Say something at random that the mask allows, while it binds; now and then say `closing`,
    which ends a text as chance alone would not.
    """
    choose, close, start = random.Random(seed), ids_of(tokenizer, closing), len(of.tokens)
    while not of.ended and of.bits() is not None:
        assert len(of.tokens) < 3000
        taken = 0
        while close and choose.random() < 0.9 and taken < len(close) and of.advance(close[taken]):
            taken += 1
        if close and taken == len(close):
            continue
        of.rollback(taken)
        token = choose.choice(allowed(of))
        assert of.advance(token)
        if token in tokenizer.eos_token_ids:
            break
    return of.tokens[start:]


def read(
    tokenizer: TokenizerWrapper,
    tokens: str | Sequence[int],
    use: ToolUse,
    seed: int = 0,
    **spec: Any,
) -> tuple[str, Calls]:
    """Return the text of an output and its calls; `seed` cuts it at random, 0 does not."""
    output = parse(tokenizer, tokens, use.functions, seed, single=use.single, **spec)
    return output.text, output.named


def valid(calls: Calls, schemas: Mapping[str, Schema]) -> bool:
    for name, arguments in calls:
        jsonschema.validate(arguments, schemas[name])
    return True
