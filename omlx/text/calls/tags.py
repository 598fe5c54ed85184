"""Stream parser of arguments between tags.

A value ends at the first closing tag behind which another argument or the end of the call follows.
A value whose closing tag was forgotten ends with the call, as soon as the next call, or the end of
the output, shows that the call has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from html import unescape
from typing import Any, Final

import regex as re

from omlx.text.calls.call import Call, arguments_json
from omlx.text.calls.format import CallFormat, Tags, Tools
from omlx.text.calls.json_repair import repaired_whole
from omlx.text.calls.values import argument_types, is_function, parse_json

_CDATA: Final = re.compile(r"\s*<!\[CDATA\[(.*)\]\]>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Value:
    """One argument: its opening tag, and where its text is."""

    tag: re.Match[str]
    start: int
    end: int


class TagReader:
    """Reader of one call whose name is in `head`."""

    def __init__(self, form: CallFormat, tools: Tools, head: re.Match[str]) -> None:
        assert form.tags is not None
        self._tags = form.tags
        self._patterns = _patterns(form.tags, form.start, form.end)
        self._tools = tools
        self._name = head["name"]
        self._types = argument_types(tools, self._name)
        self._at = head.end()  # the text before it is parsed
        self._tag: re.Match[str] | None = None  # of the value that is open
        self._values: list[_Value] = []
        self._inside_end = self._at  # where the last tag, or the call, ends
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
            arguments = parse_json(repaired_whole(inside) or "")
        if not (arguments or self._tags.ends or is_function(self._tools, self._name)):
            raise ValueError("a name alone is no call")
        return [Call(None, self._name, arguments_json(arguments))]

    def _between(self, text: str, final: bool) -> int | None:
        """Look for the next argument or the end of the call."""
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
        """Look for the end of the value that is open."""
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
        """Add a value, and those after it whose predecessor was not closed."""
        name = unescape(value.tag["name"])
        for tag in self._patterns.opens.finditer(text, value.start, value.end):
            closed = text.find(self._tags.closes, tag.end(), value.end) >= 0
            unclosed = tag["name"] not in (*arguments, name) and self._types.declares(tag["name"])
            if unclosed and not closed:
                arguments[name] = self._convert(value.tag, text[value.start : tag.start()])
                self._add(arguments, _Value(tag, tag.end(), value.end), text)
                return
        arguments[name] = self._convert(value.tag, text[value.start : value.end])

    def _convert(self, tag: re.Match[str], text: str) -> Any:
        """Return the value of one argument."""
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
        return self._types.convert(unescape(tag["name"]), text)


@dataclass(frozen=True, slots=True)
class _Patterns:
    opens: re.Pattern[str]
    between: re.Pattern[str]
    """The next argument, the call's end, or a marker."""
    inside: re.Pattern[str]
    """The end of a value: its closing tag, or a call's end with the next call."""
    last: re.Pattern[str]
    """The same where nothing follows."""
    follows: re.Pattern[str]
    """What may follow a value."""


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
