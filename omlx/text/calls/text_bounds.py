"""Bounds of texts that are not enumerated, as regular expressions of llguidance."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from omlx.text.calls.values import ArgumentTypes

MAX_LENGTH: Final = 1000
"""Characters up to which lengths are enforced: the lexer counts them."""
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
"""By format, a pattern of texts that have it; not of all such texts."""


@dataclass(frozen=True, slots=True)
class TextBounds:
    """What a text must follow: its length in characters, and regular expressions of the whole."""

    least: int = 0
    most: int | None = None
    patterns: tuple[str, ...] = ()
    empty: bool = True
    """Whether the patterns allow the empty text."""

    @property
    def free(self) -> bool:
        return self == TextBounds()

    @property
    def allows_empty(self) -> bool:
        return self.empty and not self.least

    def regexes(self) -> Iterator[str]:
        if self.least or self.most is not None:
            most = "" if self.most is None else self.most
            yield f"(?s:.{{{self.least},{most}}})"
        yield from self.patterns

    def both(self, other: TextBounds) -> TextBounds:
        """Return what holds both."""
        most = [each for each in (self.most, other.most) if each is not None]
        return TextBounds(
            max(self.least, other.least),
            min(most, default=None),
            (*self.patterns, *other.patterns),
            self.empty and other.empty,
        )


def text_bounds(types: ArgumentTypes, schema: Any) -> list[TextBounds]:
    """Return the alternatives of bounds of a schema's free texts, one that allows any text alone.

    Raises ValueError for bounds that cannot be expressed.
    """
    alternatives = list(dict.fromkeys(_alternatives(types, schema, 8)))
    if any(bounds.free for bounds in alternatives):
        return [TextBounds()]
    if len(alternatives) > _MAX_ALTERNATIVES:
        raise ValueError(f"it has more than {_MAX_ALTERNATIVES} alternatives")
    return alternatives


def _alternatives(types: ArgumentTypes, schema: Any, depth: int) -> list[TextBounds]:
    if not isinstance(schema, Mapping):
        return [] if schema is False else [TextBounds()]
    if not depth:
        raise ValueError("references are nested too deep")
    if "enum" in schema or "const" in schema or "string" not in types.kinds(schema):
        return []
    alternatives = [_own(schema)]
    parts = [_alternatives(types, part, depth - 1) for part in schema.get("allOf", ())]
    if "$ref" in schema:
        parts.append(_alternatives(types, types.resolve(schema["$ref"]), depth - 1))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = [_alternatives(types, option, depth // 2) for option in schema[key]]
            texts = [option for option in options if option]
            if key == "oneOf" and len(texts) > 1:
                raise ValueError("oneOf of several texts")
            parts.append([bounds for option in texts for bounds in option])
    for part in parts:
        alternatives = [first.both(second) for first in alternatives for second in part]
    return alternatives


def _own(schema: Mapping[str, Any]) -> TextBounds:
    """Return the bounds that a schema itself states."""
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
    """Return a regular expression of the whole texts in which a JSON schema's pattern is found.

    Raises ValueError for anchors in the middle, which llguidance lacks.
    """
    return "|".join(map(_whole, _top_alternatives(pattern)))


def _whole(alternative: list[str]) -> str:
    before = after = "(?s:.*)"
    if alternative[:1] == ["^"]:
        before, alternative = "", alternative[1:]
    if alternative[-1:] == ["$"]:
        after, alternative = "", alternative[:-1]
    if "^" in alternative or "$" in alternative:
        raise ValueError("a pattern with an anchor in the middle")
    return f"{before}{''.join(alternative)}{after}"


_PART: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""An escape, a class of characters, or a character."""


def _top_alternatives(pattern: str) -> list[list[str]]:
    """Split a pattern at each `|` outside of groups, and each alternative into its parts."""
    alternatives: list[list[str]] = [[]]
    depth = 0
    for part in _PART.findall(pattern):
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(_slashed(part))
    return alternatives


def _slashed(part: str) -> str:
    """Return a part of a pattern as it stands between slashes."""
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
