"""Formats of tool calls, by family.

    <start> <head> arguments <closes> <head> arguments <closes> <end>

`start` opens a call or a section of several. `head` is the text up to the arguments, with the
function's name. The arguments are a JSON object, which is streamed, or texts between tags (`Tags`).
A call in another form is parsed as a whole by `read`. Patterns are of the `regex` module, which can
match partially.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from omlx.text.calls.arguments import JSON, ArgumentSyntax

Tools: TypeAlias = Sequence[Mapping[str, Any]]
"""Functions in the form of chat templates: `{"type": "function", "function": {"name": …}}`."""
Read: TypeAlias = Callable[[str, Tools], Any]
"""Parser of the text between two markers, with mlx-lm's signature.

Returns a call, or a list of calls, each with "name", "arguments" and perhaps "id". Raises
ValueError, or another of `readers.PARSE_ERRORS`.
"""


class Incomplete(ValueError):
    """Text that ends inside of a call: any marker inside belongs to a value."""


NAME: Final = r"(?P<name>[\w.:/-]+)"
"""Pattern of a function's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Arguments between tags, each value as plain text: `<parameter=city>\\nOslo\\n</parameter>`.

    Values are typed by the function's schema.
    """

    opens: str
    """Pattern before a value, with group `name`.

    A group `text` matches if the value is a string whatever the schema, a group `json` if not.
    """
    closes: str  # text that follows a value
    ends: str = ""
    """Pattern at the end of a call; empty if calls end with the closing marker of `CallFormat`."""
    padding: str = ""  # text around a value, removed from it
    cdata: bool = False  # a value may be in `<![CDATA[…]]>`


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of an answer, each behind a header, for a grammar of the last message."""

    calls: tuple[str, ...]
    """Texts of a call with header, with places for {name} and {arguments}."""
    thought: str  # header of reasoning
    preamble: str  # header of a text that precedes a call
    answer: str  # header of the answer, where no function is called
    between: str  # text between two messages
    markers: str  # pattern of markup, which no text may contain


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """Form of tool calls in a family of models."""

    start: str  # marker before a call, or before a section of calls
    end: str  # marker after the call or section; empty if there is none
    templates: tuple[tuple[str, ...], ...] = ()
    """Texts in a chat template by which the family is recognised: all texts of any group."""
    parser: str = ""  # mlx-lm's parser of this family, which identifies the family too
    begins: str = ""
    """Pattern after the marker of every call; a marker followed by anything else is prose."""
    bare: tuple[str, ...] = ()
    """Beginnings of a call without its opening marker.

    They are part of the call, which must be of a function of the request.
    """
    leading: str = ""
    """Pattern that begins a call without a marker, at the very start of an answer."""
    head: str | None = None
    """Pattern of a call up to its arguments, with a group `name` and perhaps `id`."""
    follows: str | None = None
    """Pattern of a further call between the same markers, if `head` could match prose there."""
    tags: Tags | None = None  # form of the arguments that follow the head; None: a JSON object
    closes: str = ""  # pattern after the arguments, before the closing marker or the next head
    read: Read | None = None
    """Parser of calls that do not begin with `head`; None: mlx-lm's for this model, if any."""
    json: bool = True
    """Whether text for `read` that begins with a bracket is JSON, and ends there."""
    before: str = ""  # text before the marker of a call that is written
    written: str | None = None
    """Text of a call between the markers, for a grammar that enforces the function's schema.

    Has places for {name}, {arguments}, {number} and {id}.
    """
    syntax: ArgumentSyntax = JSON
    """Syntax of {arguments} in `written`."""
    messages: Messages | None = None
    """Form of an answer of several messages, if calls are messages of their own."""
    marked: bool = True  # a forced call is written behind the opening marker
    between: str = ""  # optional text between two pairs of markers
    together: bool = False  # several calls share one pair of markers
    section: tuple[str, str] = ("", "")  # texts around all calls of one pair of markers
    separator: str = ""  # text between two calls of one pair of markers
    id_pattern: str = "[a-zA-Z0-9]{9}"  # pattern of {id} in `written`
    short_ids: bool = False
    """Whether templates of this family refuse ids other than nine letters and digits."""
