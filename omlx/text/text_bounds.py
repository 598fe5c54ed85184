"""Bounds of texts by a JSON schema, as regular expressions of llguidance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omlx.text.schema import Schema, SchemaTypes, listed

MAX_LENGTH: Final = 1000
"""Characters — longest enforced length: the lexer counts them."""
_MAX_ALTERNATIVES: Final = 8
_DAY: Final = (
    r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_DATE: Final = f"[0-9]{{3}}[1-9]-{_DAY}"
_TIME: Final = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+\-]{_CLOCK})"
_LABEL: Final = r"[a-z0-9]([a-z0-9\-]{0,61}[a-z0-9])?"
_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "email": rf"[a-zA-Z0-9_+\-]+(\.[a-zA-Z0-9_+\-]+)*@{_LABEL}(\.{_LABEL})*\.[a-z]{{2,}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Pattern by format; each matches only texts of the format, not all of them."""
_PART: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""Pattern of an escape, a class of characters, or a character."""


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Bounds of a text: length in characters, and regular expressions of the whole."""

    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()
    empty: bool = True  # whether the patterns allow the empty text

    @property
    def free(self) -> bool:
        return self == NO_BOUNDS

    @property
    def allows_empty(self) -> bool:
        return self.empty and not self.least

    def regexes(self) -> Iterator[str]:
        if self.least or self.most is not None:
            most = "" if self.most is None else self.most
            yield f"(?s:.{{{self.least},{most}}})"
        yield from self.patterns

    def both(self, other: TextBounds) -> TextBounds:
        most = [each for each in (self.most, other.most) if each is not None]
        return TextBounds(
            max(self.least, other.least),
            min(most, default=None),
            (*self.patterns, *other.patterns),
            self.empty and other.empty,
        )


NO_BOUNDS: Final = TextBounds()


def text_bounds(types: SchemaTypes, schema: Any) -> list[TextBounds]:
    """Return alternative bounds of a schema's free texts; `NO_BOUNDS` alone if any text is allowed.

    Raises ValueError for inexpressible bounds.
    """
    for part in types.branches(schema):
        if sum(map(types.free_text, listed(part.get("oneOf")))) > 1:
            raise ValueError("oneOf of several texts")
    found = types.alternatives(schema, _own, TextBounds.both, types.allows_text)
    alternatives = list(dict.fromkeys(found))
    if any(bounds.free for bounds in alternatives):
        return [NO_BOUNDS]
    if len(alternatives) > _MAX_ALTERNATIVES:
        raise ValueError(f"it has more than {_MAX_ALTERNATIVES} alternatives")
    return alternatives


def _own(schema: Schema) -> TextBounds:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if max(least, most or 0) > MAX_LENGTH:
        raise ValueError(f"a length of more than {MAX_LENGTH} characters")
    patterns, empty = [], True
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str):
        patterns.append(whole_pattern(pattern))
        empty = _matches_empty(pattern)
    if isinstance(form, str):
        if form not in FORMATS:
            raise ValueError(f"format '{form[:80]}'")
        patterns.append(FORMATS[form])
        empty = False
    return TextBounds(least, most, tuple(patterns), empty)


def whole_pattern(pattern: str) -> str:
    """Return a regular expression of whole texts in which a JSON schema's pattern is found.

    Raises ValueError for anchors in the middle, which llguidance lacks.
    """
    alternatives: list[list[str]] = [[]]
    depth = 0  # of groups
    for part in _PART.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(_slashed(part))
    return "|".join(map(_whole, alternatives))


def _whole(alternative: list[str]) -> str:
    before = after = "(?s:.*)"
    if alternative[:1] == ["^"]:
        before, alternative = "", alternative[1:]
    if alternative[-1:] == ["$"]:
        after, alternative = "", alternative[:-1]
    if "^" in alternative or "$" in alternative:
        raise ValueError("a pattern with an anchor in the middle")
    return f"{before}{''.join(alternative)}{after}"


def _slashed(part: str) -> str:
    if part.startswith("["):
        part = re.sub(r"(?<!\\)/", r"\\/", part)
    elif part == "/":
        part = r"\/"
    return part.replace("\n", r"\n")


def _matches_empty(pattern: str) -> bool:
    try:
        return re.search(pattern, "") is not None
    except re.error:
        return False
