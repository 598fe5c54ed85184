"""Readers of calls that are emitted at their end: in any form, and between tags.

`find` takes all of the text each time, and `final`: nothing follows. `find` returns the index after
the call, None if the call continues; then `calls` returns the parsed calls, or raises one of
`PARSE_ERRORS`.

A value between tags ends at the first closing tag behind which another argument or the end of the
call follows. A value without a closing tag ends with the call, as soon as the next call, or the end
of the output, shows that the call has ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from html import unescape
from typing import Any, Final, TypeAlias

import regex as re

from omlx.text.calls.format import CallFormat, Incomplete, Tags, Tools
from omlx.text.calls.markup import JSON_CALL, CallMarkup
from omlx.text.calls.repair import JsonRepair, repaired
from omlx.text.calls.values import argument_types, convert, is_function, parse_json

PARSE_ERRORS: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    SyntaxError,
    RecursionError,
    OverflowError,  # an infinite number where an integer is due
    MemoryError,  # of Python's own parser, for deep nesting
)
"""Errors of mlx-lm's parsers for text without a call."""
_IDENTIFIER = re.compile(r"[\w.:/-]{1,128}")
_STRUCTURE = re.compile(r"[{<\[(]")


@dataclass(frozen=True, slots=True)
class Call:
    id: str | None
    name: str
    arguments: str  # JSON


class WholeReader:
    """Reader of a call without its format's head.

    The call ends with its JSON, or before the closing marker.
    """

    def __init__(self, markup: CallMarkup) -> None:
        self._markup = markup
        self._searched = 0  # length of the text already searched for the closing marker
        self._fed = 0  # length of the text already parsed as JSON
        self._json = JsonRepair(markup.form.end)

    def find(self, text: str, *, final: bool = False) -> int | None:
        start, marker = self._searched, self._markup.form.end
        form = self._markup.form
        bracket = form.json and form.read and text.lstrip().startswith(("{", "["))
        if bracket or JSON_CALL.match(text):
            fed, self._fed = self._fed, len(text)
            self._json.feed(text[fed:])
            if self._json.ended:
                return len(text) - len(self._json.rest)
        elif marker:
            while (end := text.find(marker, start)) >= 0:
                if self._complete(text[:end]):
                    return end
                start = end + 1
            self._searched = max(0, len(text) - len(marker) + 1)
        return len(text) if final else None

    def _complete(self, text: str) -> bool:
        """Return whether a marker at the end of a text closes the call."""
        if self._markup.form.read is not None:
            try:
                self._markup.form.read(text, self._markup.tools)
            except Incomplete:
                return False
            except PARSE_ERRORS:
                return True
        return True

    def calls(self, text: str) -> list[Call]:
        """Return the calls of the format's parser. Raises unless all of them are valid."""
        found = self._markup.parse(text)
        return [self._call(call, text) for call in (found if isinstance(found, list) else [found])]

    def _call(self, call: Any, text: str) -> Call:
        name, arguments = call["name"], call["arguments"]
        if not isinstance(name, str) or not self._plausible(name, text):
            raise ValueError("no name of a function")
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not isinstance(arguments, dict):
            raise TypeError("arguments are an object")
        call_id = call.get("id")
        return Call(call_id if isinstance(call_id, str) else None, name, arguments_json(arguments))

    def _plausible(self, name: str, text: str) -> bool:
        # Some of mlx-lm's parsers accept any word: the text must have the structure of a call.
        looks = _IDENTIFIER.fullmatch(name) is not None and _STRUCTURE.search(text) is not None
        return looks or is_function(self._markup.tools, name)


def arguments_json(arguments: dict[str, Any]) -> str:
    """Return arguments as JSON. Raises ValueError or TypeError for values outside JSON or UTF-8."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


_CDATA: Final = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Value:
    tag: re.Match[str]
    start: int
    end: int


class TagReader:
    """Reader of a call whose arguments are between tags, from its `head` on."""

    def __init__(self, form: CallFormat, tools: Tools, head: re.Match[str]) -> None:
        assert form.tags is not None
        self._tags = form.tags
        self._patterns = _patterns(form.tags, form.start, form.end)
        self._tools = tools
        self._name = head["name"]
        self._types = argument_types(tools, self._name)
        self._at = head.end()  # index up to which text is parsed
        self._tag: re.Match[str] | None = None  # opening tag of the current value
        self._values: list[_Value] = []
        self._inside_end = self._at  # index after the last tag, or after the call
        self._head_end = self._at

    def find(self, text: str, *, final: bool = False) -> int | None:
        while True:
            before = (self._at, self._tag)
            if self._tag is None:
                end = self._between(text, final)
            else:
                end = self._inside(self._tag, text, final)
            if end is not None or before == (self._at, self._tag):
                return end

    def calls(self, text: str) -> list[Call]:
        arguments: dict[str, Any] = {}
        at, between = self._head_end, ""
        for value in self._values:
            self._add(arguments, value, text)
            between += text[at : value.tag.start()]
            at = value.end
        between += text[at : self._inside_end]
        if between.count(self._tags.closes) > len(self._values):
            raise ValueError("a value whose opening tag cannot be read")
        inside = text[self._head_end : self._inside_end].strip()
        if not self._values and inside.startswith("{"):
            arguments = parse_json(repaired(inside, whole=True))
        if not (arguments or self._tags.ends or is_function(self._tools, self._name)):
            raise ValueError("a name alone is no call")
        return [Call(None, self._name, arguments_json(arguments))]

    def _between(self, text: str, final: bool) -> int | None:
        found = self._patterns.between.search(text, self._at, partial=not final)
        if found is None:
            # Calls of some formats end with the closing marker alone, which models forget.
            rest = text[self._at :].strip()
            if final and not self._tags.ends and (not rest or rest.startswith("{")):
                self._inside_end = len(text)
                return len(text)
            if not final:
                self._at = len(text)
            return None
        if found.partial:
            self._at = found.start()
            return None
        self._inside_end = found.start()
        if found["name"] is None:
            return int(found.start() if found["marker"] else found.end())
        self._tag, self._at = found, found.end()
        return None

    def _inside(self, tag: re.Match[str], text: str, final: bool) -> int | None:
        inside = self._patterns.last if final else self._patterns.inside
        found = inside.search(text, self._at, partial=not final)
        if found is None or found.partial:
            if not final:
                self._at = found.start() if found else len(text)
            return None
        if found["closes"]:
            follows = self._patterns.follows.match(text, found.end(), partial=not final)
            if follows is None and not (final and not text[found.end() :].strip()):
                self._at = found.start() + 1
                return None
            if follows is not None and follows.partial:
                self._at = found.start()
                return None
            self._at = found.end()
        else:
            self._at = found.start()
        self._values.append(_Value(tag, tag.end(), found.start()))
        self._tag = None
        return None

    def _add(self, arguments: dict[str, Any], value: _Value, text: str) -> None:
        # An unclosed value may contain further arguments.
        name = unescape(value.tag["name"])
        for tag in self._patterns.opens.finditer(text, value.start, value.end):
            closed = text.find(self._tags.closes, tag.end(), value.end) >= 0
            unclosed = tag["name"] not in (*arguments, name) and self._types.declared(tag["name"])
            if unclosed and not closed:
                arguments[name] = self._convert(value.tag, text[value.start : tag.start()])
                self._add(arguments, _Value(tag, tag.end(), value.end), text)
                return
        arguments[name] = self._convert(value.tag, text[value.start : value.end])

    def _convert(self, tag: re.Match[str], text: str) -> Any:
        text = text.removeprefix(self._tags.padding)
        if text.endswith(self._tags.padding):
            text = text[: len(text) - len(self._tags.padding)]
        if self._tags.cdata and (quoted := _CDATA.fullmatch(text)):
            text = quoted[1]
        groups = tag.groupdict()
        if groups.get("text"):
            return text
        if groups.get("json"):
            try:
                return parse_json(text)
            except ValueError:
                return text
        return convert(self._types, unescape(tag["name"]), text)


@dataclass(frozen=True, slots=True)
class _Patterns:
    opens: re.Pattern[str]
    between: re.Pattern[str]  # the next argument, the call's end, or a marker
    inside: re.Pattern[str]
    """Pattern of the end of a value: its closing tag, or a call's end with the next call."""
    last: re.Pattern[str]  # `inside` at the end of the output
    follows: re.Pattern[str]  # text behind a value: an argument or the end of the call


@cache
def _patterns(tags: Tags, opener: str, closer: str) -> _Patterns:
    markers = "|".join(re.escape(marker) for marker in (closer, opener) if marker)
    ends = [tags.ends] if tags.ends else []
    end = re.escape(closer) if closer else r"(?!)"
    if ends:
        end = rf"(?:{tags.ends})\s*(?:{end})"
    between = "|".join([tags.opens, *ends, rf"(?P<marker>{markers})"])
    closes = rf"(?P<closes>{re.escape(tags.closes)})"
    last = "|".join([*ends, re.escape(closer)] if closer else ends)
    return _Patterns(
        re.compile(tags.opens),
        re.compile(between),
        re.compile(rf"{closes}|{end}\s*{re.escape(opener)}"),
        re.compile(rf"{closes}|(?:{last})(?:\s|{markers})*\Z"),
        re.compile(rf"\s*(?:{between})"),
    )


CallReader: TypeAlias = WholeReader | TagReader
