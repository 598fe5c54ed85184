"""Grammars of requests in llguidance's dialect of Lark."""

from __future__ import annotations

import re
from typing import Final

from llguidance.gbnf_to_lark import any_to_lark

MAX_RULES: Final = 1_000
"""llguidance compiles by recursion: its stack overflows at some 2,000 rules in a chain."""
_RULE: Final = re.compile(":+")
"""In each rule, of Lark's format or llama.cpp's, and in each reference of an embedded schema."""


def to_lark(grammar: str) -> str:
    """Convert a grammar in llama.cpp's format or in Lark's. Raises ValueError."""
    if (rules := len(_RULE.findall(grammar))) > MAX_RULES:
        raise ValueError(f"{rules} rules exceed the limit of {MAX_RULES}")
    try:
        return any_to_lark(grammar)
    except Exception as error:  # the converter raises errors of many types
        raise ValueError(str(error) or type(error).__name__) from error
