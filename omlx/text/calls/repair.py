"""Repair of JSON that a model writes, in a stream of pieces.

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
    KEY = auto()  # or the end of the object
    COLON = auto()
    MEMBER = auto()  # value of a member
    ITEM = auto()  # or the end of the list
    AFTER_MEMBER = auto()  # a comma, or the end of the object
    AFTER_ITEM = auto()  # a comma, or the end of the list


_BEFORE_VALUE: Final[Mapping[_Next, str]] = {
    _Next.KEY: '"": ',
    _Next.COLON: ": ",
    _Next.AFTER_MEMBER: ', "": ',
    _Next.AFTER_ITEM: ", ",
}
"""Missing text before a value, behind a held comma."""
_BEFORE_END: Final[Mapping[_Next, str]] = {_Next.COLON: ": null", _Next.MEMBER: "null"}
"""Missing text before a comma or a closing bracket."""


class JsonRepair:
    """Filter of one JSON object or list; `rest` is the text after its end.

    `terminator` is text that ends the JSON anywhere outside of a string.
    """

    def __init__(self, terminator: str = "") -> None:
        self.ended = False
        self.rest = ""
        self._terminator = terminator
        self._text = ""  # undecided
        self._open: list[str] = []  # brackets that are not closed yet
        self._next = _Next.ITEM
        self._quote = ""  # opening quote of the current string
        self._comma = ""  # held comma, perhaps trailing, and its white space
        self._passed: list[str] = []

    def feed(self, text: str) -> str:
        """Return the certain part of the repaired text. Not to be called after the end."""
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
        """Return the end of unfinished JSON; the output remains a prefix of valid JSON.

        `complete`: nothing was cut off, so brackets are added if only brackets are missing.
        """
        if complete and not self._quote and self._open:
            passed = self.feed(" ").removesuffix(" ")
            if self._next not in _BEFORE_END:
                self._close_all()
            rest, self._passed = "".join(self._passed), []
            return passed + rest
        in_value = self._next in (_Next.MEMBER, _Next.ITEM)
        if self._quote or not in_value or not _NUMBER.fullmatch(self._text):
            return ""
        return self._comma + self._text

    def _string(self, at: int) -> int:
        """Emit a part of a string; return its length, 0 if more text is needed."""
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
        """Emit an escape; surrogates without their partner become U+FFFD."""
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
        """Emit a token outside of strings; return its length, 0 if more text is needed."""
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
                self._close_all()
            if self._terminator.startswith(text):
                return 0
        if character in "\"'":
            if self._next is _Next.COLON:
                behind = self._text[at + 1 :].lstrip()[:1]
                if behind in ("", ":"):  # it closes a key without an opening quote
                    return len(behind)
            self._begin_string(character)
        elif character in "{[":
            self._pass_value(character)
            self._open.append(character)
            self._next = _Next.KEY if character == "{" else _Next.ITEM
        elif character in "}]":
            self._close()
        elif character == ":":
            if self._next is _Next.COLON:  # other colons are superfluous
                self._passed.append(":")
                self._next = _Next.MEMBER
        elif character == ",":
            self._separate()
        else:
            return self._word(at)
        return 1

    def _separate(self) -> None:
        # Superfluous commas are dropped.
        if self._next not in (_Next.KEY, _Next.ITEM):
            self._passed.append(_BEFORE_END.get(self._next, ""))
            self._comma = ","
            self._next = _Next.KEY if self._in_object else _Next.ITEM

    @property
    def _in_object(self) -> bool:
        return self._open[-1:] == ["{"]

    @property
    def _after_value(self) -> _Next:
        return _Next.AFTER_MEMBER if self._in_object else _Next.AFTER_ITEM

    def _begin_string(self, quote: str) -> None:
        if self._next in (_Next.KEY, _Next.AFTER_MEMBER):
            forgotten = ", " if self._next is _Next.AFTER_MEMBER else ""
            self._passed.append((self._comma or forgotten) + '"')
            self._comma, self._next = "", _Next.COLON
        else:
            self._pass_value('"')
        self._quote = quote

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
            self._comma, self._next = "", _Next.COLON
        else:
            self._pass_value(_constant(word))
        return len(word)

    def _pass_value(self, text: str) -> None:
        self._passed += [self._comma, _BEFORE_VALUE.get(self._next, ""), text]
        self._comma, self._next = "", self._after_value

    def _close(self) -> None:
        self._passed += [_BEFORE_END.get(self._next, ""), self._comma.removeprefix(",")]
        self._comma = ""
        if self._open:
            self._passed.append(_CLOSING[self._open.pop()])
        self._next = self._after_value
        self.ended = not self._open

    def _close_all(self) -> None:
        while self._open:
            self._close()


def repaired(text: str, *, whole: bool = False) -> str:
    """Return the JSON object or list at the beginning of a text, repaired.

    Brackets are added if only brackets are missing. `whole`: empty for unfinished text, and for
    text behind the end.
    """
    repair = JsonRepair()
    passed = repair.feed(text)
    if not repair.ended:
        passed += repair.finish(complete=True)
    ended = repair.ended and not repair.rest.strip(_SPACE + "]}")
    return passed if ended or not whole else ""


def _constant(word: str) -> str:
    if _NUMBER.fullmatch(word):
        return word
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        number = float(word.replace("_", "x"))
    except ValueError:
        return json.dumps(word, ensure_ascii=False)
    return json.dumps(number) if isfinite(number) else "null"
