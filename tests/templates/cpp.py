"""Values of C++ expressions that are made of literals: strings, lists in braces, names and calls
that the caller knows. It is what reads the recorded outputs of llama.cpp's tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

_TOKEN: Final = re.compile(
    r"""
    \s+ | //[^\n]* | /\*.*?\*/                                   # skipped
    | (?P<raw>R"(?P<mark>[^(\s]*)\((?P<body>.*?)\)(?P=mark)")
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<number>-?\d+)
    | (?P<name>[A-Za-z_][\w:]*)
    | (?P<sign>[(){},+.])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class Unreadable(ValueError):
    """An expression that is not made of literals."""


class Reader:
    """Recursive-descent reader of one expression at a time.

    `names` maps variables to values and functions to callables; `std::string` and enumerators need
    not be in it.
    """

    def __init__(self, source: str, names: Mapping[str, Any]) -> None:
        self.at = 0
        self._source, self._names = source, names

    def peek(self) -> str:
        """Return the next token; empty at anything that is none."""
        match = self._next()
        return match[0] if match else ""

    def take(self, text: str) -> bool:
        """Skip the next token if it is `text`; return whether it was."""
        match = self._next()
        if match is None or match[0] != text:
            return False
        self.at = match.end()
        return True

    def word(self) -> str:
        match = self._next()
        if match is None or not match["name"]:
            raise Unreadable(f"no name at {self._source[self.at : self.at + 40]!r}")
        self.at = match.end()
        return match[0]

    def arguments(self) -> list[Any]:
        """Read the arguments of a call, from one parenthesis to the other."""
        if not self.take("("):
            raise Unreadable("no call")
        return self._items(")")

    def expression(self) -> Any:
        value = self._term()
        while self.peek() == "+" or self.peek()[:1] in ('"', "R"):
            self.take("+")
            value = value + self._term()
        return value

    def _items(self, end: str) -> list[Any]:
        items = []
        while not self.take(end):
            items.append(self.expression())
            if not self.take(",") and self.peek() != end:
                raise Unreadable(f"no {end} at {self._source[self.at : self.at + 40]!r}")
        return items

    def _term(self) -> Any:
        match = self._next()
        if match is None:
            raise Unreadable(f"no literal at {self._source[self.at : self.at + 40]!r}")
        if match["name"] is not None:
            return self._named()
        self.at = match.end()
        if match["raw"] is not None:
            return match["body"]
        if match["text"] is not None:
            return _unescaped(match[0][1:-1])
        if match["number"] is not None:
            return int(match[0])
        if match[0] == "{":
            return self._items("}")
        raise Unreadable(f"no literal: {match[0]}")

    def _named(self) -> Any:
        name = self.word()
        if self.peek() == "(":
            arguments = self.arguments()
            if name == "std::string":
                return arguments[0]
            return self._function(name)(*arguments)
        if name in ("true", "false"):
            return name == "true"
        if name.isupper():
            return name
        if name not in self._names:
            raise Unreadable(f"unknown name: {name}")
        return self._names[name]

    def _function(self, name: str) -> Callable[..., Any]:
        function = self._names.get(name)
        if not callable(function):
            raise Unreadable(f"unknown function: {name}")
        return function

    def _next(self) -> re.Match[str] | None:
        while True:
            match = _TOKEN.match(self._source, self.at)
            if match is None or match.lastgroup is not None:
                return match
            self.at = match.end()


def _unescaped(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    # Bytes written as \xE2\x80 are UTF-8.
    plain = re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", replace, text, flags=re.DOTALL)
    if re.search(r"\\x", text):
        return plain.encode("latin-1").decode()
    return plain
