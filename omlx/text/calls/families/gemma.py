"""Gemma 4 and FunctionGemma, which write objects without quotes around their keys.

<|tool_call>call:look{at:<|"|>x<|"|>}<tool_call|>
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

import regex as re

from omlx.text.calls.families.gemma_syntax import GemmaArguments
from omlx.text.calls.format import NAME, CallFormat, Incomplete, Tools
from omlx.text.calls.values import ArgumentTypes, argument_types

_NAME: Final = re.compile(r"[\s,]*(?:call:\s*)?([\w.:/-]+)\s*(?=\{)")
_JSON_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SPACE: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"[^{}\[\],:]*")
_BARE: Final = re.compile(r"[^{}\[\],]*")
_PYTHON: Final = {"None": "null", "True": "true", "False": "false"}
_MAX_DEPTH: Final = 64
_ANY: Final = ArgumentTypes({})


class _Scanner:
    """Parser of one text; `quote` stands around strings, and so may quotes of JSON. Raises
    ValueError, and Incomplete where the text ends inside a call.
    """

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote
        self._at = 0

    def calls(self, tools: Tools) -> list[dict[str, Any]]:
        calls = []
        while (name := _NAME.match(self._text, self._at)) is not None:
            self._at = name.end()
            if not self._skip("{"):
                raise ValueError("arguments are an object")
            arguments = self._members(argument_types(tools, name[1]), 0)
            calls.append({"name": name[1], "arguments": arguments})
        if self._text[self._at :].strip():
            raise ValueError("text after the call")
        return calls

    def _members(self, types: ArgumentTypes, depth: int) -> dict[str, Any]:
        """Parse the members of an object after its bracket; `types` types bare words."""
        members: dict[str, Any] = {}
        while not self._skip("}"):
            if self._skip(self._quote):
                key = self._string()
            elif self._text.startswith('"', self._at):
                key = self._json_string()
            else:
                key = self._word(_WORD)
            if not self._skip(":"):
                raise ValueError("a key without a value")
            members[key] = self._value(types, key, depth)
            self._skip(",")
        return members

    def _value(self, types: ArgumentTypes, key: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deep")
        if self._skip(self._quote):
            return self._string()
        if self._text.startswith('"', self._at):
            return self._json_string()
        if self._skip("{"):
            return self._members(_ANY, depth + 1)
        if self._skip("["):
            items = []
            while not self._skip("]"):
                items.append(self._value(_ANY, "", depth + 1))
                self._skip(",")
            return items
        word = self._word(_BARE)
        return types.convert(key, _PYTHON.get(word, word))

    def _skip(self, token: str) -> bool:
        """Skip a token and the white space before it, if it is next."""
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
        if self._at == len(self._text):
            raise Incomplete("the end")
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _string(self) -> str:
        """Parse the rest of a string."""
        end = self._text.find(self._quote, self._at)
        if end < 0:
            raise Incomplete("a string")
        text, self._at = self._text[self._at : end], end + len(self._quote)
        return text

    def _json_string(self) -> str:
        found = _JSON_STRING.match(self._text, self._at)
        if found is None:
            raise Incomplete("a string")
        self._at = found.end()
        return str(json.loads(found[0], strict=False))

    def _word(self, pattern: re.Pattern[str]) -> str:
        word = pattern.match(self._text, self._at)
        if word is None or not word[0]:
            raise ValueError("a value is missing")
        self._at = word.end()
        return str(word[0]).strip()


def _read(text: str, tools: Tools, *, quote: str) -> list[dict[str, Any]]:
    return _Scanner(text, quote).calls(tools)


GEMMA_4: Final = CallFormat(
    start="<|tool_call>",
    end="<tool_call|>",
    begins=rf"\s*(?:call:\s*)?{NAME}\s*\{{",
    read=partial(_read, quote='<|"|>'),
    written="call:{name}{{arguments}}",
    syntax=GemmaArguments('<|"|>'),
)
FUNCTION_GEMMA: Final = CallFormat(
    start="<start_function_call>",
    end="<end_function_call>",
    begins=rf"\s*(?:call:\s*)?{NAME}\s*\{{",
    read=partial(_read, quote="<escape>"),
    written="call:{name}{{arguments}}",
    syntax=GemmaArguments("<escape>"),
)
