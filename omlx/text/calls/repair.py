"""Repair of JSON that a model writes, while it comes in pieces.

The result parses as JSON once it has ended, and valid JSON passes unchanged. Raw control characters
in strings are escaped, trailing commas dropped, words of Python and unquoted words made JSON,
missing parts filled in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto
from math import isfinite
from typing import Final

import regex as re

from omlx.text.filters import overlap

_SPACE: Final = " \t\r\n"
_CLOSING: Final[Mapping[str, str]] = {"{": "}", "[": "]"}
_WORDS: Final[Mapping[str, str]] = {
    "true": "true",
    "false": "false",
    "null": "null",
    "none": "null",
    "nan": "null",
    "undefined": "null",
}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"""[^\s{}\[\]:,"']+""")
_PLAIN: Final = re.compile(r"""[^"'\\\x00-\x1f\ud800-\udfff]+""")
_HIGH: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")
_PAIR: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LOW: Final = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPE: Final = re.compile(r"""\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})""")


class _Next(Enum):
    """Next token of valid JSON."""

    KEY = auto()  # or the end of the object
    COLON = auto()
    VALUE = auto()  # or the end of the list
    COMMA = auto()  # or the end of the object or list


class JsonRepair:
    """Filter of one JSON object or list; `rest` is the text after its end.

    `terminator` is a text that ends it wherever it stands outside of a string.
    """

    def __init__(self, terminator: str = "") -> None:
        self.ended = False
        self.rest = ""
        self._terminator = terminator
        self._text = ""  # undecided
        self._open: list[str] = []  # brackets
        self._next = _Next.VALUE
        self._quote = ""  # of the string that is open
        self._comma = ""  # a comma that may be a trailing one, with the white space after it
        self._passed: list[str] = []

    def feed(self, text: str) -> str:
        """Return the repaired text that is certain. Not to be called after the end."""
        self._text += text
        at = 0
        while at < len(self._text) and not self.ended:
            step = self._string(at) if self._quote else self._token(at)
            if not step:
                break
            at += step
        self._text = self._text[at:]
        if self.ended:
            self.rest, self._text = self._text, ""
        passed, self._passed = "".join(self._passed), []
        return passed

    def finish(self, *, complete: bool = False) -> str:
        """Return the end of JSON that never ended, as far as it is the beginning of valid JSON.

        `complete`: nothing was cut off, so brackets that are all that is missing are added.
        """
        if complete and not self._quote and self._open:
            passed = self.feed(" ").removesuffix(" ")
            in_list = self._open[-1] == "["
            if self._next in (_Next.COMMA, _Next.KEY) or (self._next is _Next.VALUE and in_list):
                while self._open:
                    self._close()
            rest, self._passed = "".join(self._passed), []
            return passed + rest
        if self._quote or self._next is not _Next.VALUE or not _NUMBER.fullmatch(self._text):
            return ""
        return self._comma + self._text

    def _string(self, at: int) -> int:
        plain = _PLAIN.match(self._text, at)
        if plain is not None:
            self._passed.append(plain[0])
            return len(plain[0])
        character = self._text[at]
        if character == self._quote:
            self._quote = ""
            self._passed.append('"')
        elif character == "\\":
            return self._escape(at)
        elif character in "\"'":
            self._passed.append('\\"' if character == '"' else character)
        elif character < " ":
            self._passed.append(json.dumps(character)[1:-1])
        else:
            self._passed.append("\ufffd")
        return 1

    def _escape(self, at: int) -> int:
        """Pass on an escape; surrogates without their partner become U+FFFD."""
        text = self._text[at : at + 12]
        for pattern, replacement in ((_PAIR, None), (_HIGH, r"\ufffd"), (_LOW, r"\ufffd")):
            found = pattern.match(text, partial=True)
            if found is not None and found.partial and pattern is not _LOW and len(text) < 12:
                return 0
            if found is not None and not found.partial:
                self._passed.append(replacement or found[0])
                return len(found[0])
        found = _ESCAPE.match(text, partial=True)
        if found is None:
            self._passed.append("'" if text[1] == "'" else r"\\")
            return 2 if text[1] == "'" else 1
        if found.partial:
            return 0
        self._passed.append(found[0])
        return len(found[0])

    def _token(self, at: int) -> int:
        """Pass on one token outside of strings; return its length, 0 if it may continue."""
        character = self._text[at]
        if character in _SPACE:
            if self._comma:
                self._comma += character
            else:
                self._passed.append(character)
            return 1
        if self._terminator and self._open:
            text = self._text[at : at + len(self._terminator)]
            if text == self._terminator:
                while self._open:
                    self._close()
                return 0
            if self._terminator.startswith(text):
                return 0
        if character in "\"'" and self._next is _Next.COLON:
            behind = self._text[at + 1 :].lstrip()
            if behind[:1] in ("", ":"):  # a quote behind a key without one before it
                return int(bool(behind))
        if character in "{[\"'":
            self._start(character)
        elif character in "}]":
            self._close()
        elif character == ":":
            self._colon()
        elif character == ",":
            self._separate()
        else:
            return self._word(at)
        return 1

    def _start(self, character: str) -> None:
        in_object = bool(self._open) and self._open[-1] == "{"
        forgotten = ", " if self._next is _Next.COMMA and in_object else ""
        key = (forgotten or self._next is _Next.KEY) and character in "\"'"
        if key:
            self._passed.append(self._comma or forgotten)
        else:
            self._fill()
        self._comma = ""
        if character in "\"'":
            self._quote = character
            self._passed.append('"')
            self._next = _Next.COLON if key else _Next.COMMA
        else:
            self._passed.append(character)
            self._open.append(character)
            self._next = _Next.KEY if character == "{" else _Next.VALUE

    def _close(self) -> None:
        if self._next is _Next.COLON:
            self._passed.append(": null")
        elif self._next is _Next.VALUE and self._open and self._open[-1] == "{":
            self._passed.append("null")
        self._passed.append(self._comma.removeprefix(","))
        self._comma = ""
        if self._open:
            self._passed.append(_CLOSING[self._open.pop()])
        self._next = _Next.COMMA
        self.ended = not self._open

    def _colon(self) -> None:
        if self._next is _Next.COLON:
            self._passed.append(":")
            self._next = _Next.VALUE

    def _separate(self) -> None:
        """Hold a comma back; superfluous ones are dropped."""
        in_object = bool(self._open) and self._open[-1] == "{"
        if self._next is _Next.COLON:
            self._passed.append(": null")
        elif self._next is _Next.VALUE and in_object:
            self._passed.append("null")
        elif self._next is not _Next.COMMA:
            return
        self._comma = ","
        self._next = _Next.KEY if in_object else _Next.VALUE

    def _word(self, at: int) -> int:
        found = _WORD.match(self._text, at)
        assert found is not None
        word, end = found[0], len(self._text)
        if self._terminator and self._open:
            marker = self._text.find(self._terminator, at)
            end = marker if marker >= 0 else end - overlap(self._text, self._terminator)
            word = word[: end - at]
        if at + len(word) == end and not self._text.startswith(self._terminator or "\0", end):
            return 0
        if self._next is _Next.KEY:
            self._passed += [self._comma, json.dumps(word, ensure_ascii=False)]
            self._next = _Next.COLON
        else:
            self._fill()
            self._passed.append(_constant(word))
            self._next = _Next.COMMA
        self._comma = ""
        return len(word)

    def _fill(self) -> None:
        missing = self._comma
        in_object = bool(self._open) and self._open[-1] == "{"
        if self._next is _Next.COLON:
            missing = ": "
        elif self._next is _Next.COMMA:
            missing = ', "": ' if in_object else ", "
        elif self._next is _Next.KEY:
            missing += '"": '
        self._passed.append(missing)


def repaired(text: str) -> str:
    """Return the JSON object or list that a text begins with, repaired; brackets are added where
    they are all that is missing.
    """
    repair = JsonRepair()
    passed = repair.feed(text)
    return passed if repair.ended else passed + repair.finish(complete=True)


def repaired_whole(text: str) -> str | None:
    """Return a text that is a JSON object or list, repaired; None if it is more, or unfinished."""
    repair = JsonRepair()
    passed = repair.feed(text)
    if not repair.ended:
        passed += repair.finish(complete=True)
    return passed if repair.ended and not repair.rest.strip(_SPACE + "]}") else None


def _constant(word: str) -> str:
    """Return a word as JSON: a number or constant, else a string."""
    if _NUMBER.fullmatch(word):
        return word
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        number = float(word.replace("_", "x"))
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return json.dumps(number) if isfinite(number) else "null"
