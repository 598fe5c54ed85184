"""Markup of gpt-oss ("harmony"), for which mlx-lm has no parser.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>final<|message|>an answer

A header names a channel, and a recipient if the message is a call. Models misspell headers: any
text that can be a header is a header, up to `<|message|>`; the last channel in it counts. Markers
are dropped everywhere except in the strings of a call. A model uses this markup if the chat
template does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import regex as re

from omlx.text.filters import CONTENT, HEADER, REASONING, ChannelSplitter, Piece, longest_overlap
from omlx.text.schema import properties_of
from omlx.text.tokens import Tokenizer

CALL: Final = "to=functions."
MESSAGE: Final = "<|message|>"
CALL_END: Final = "<|call|>"
THOUGHT: Final = (
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
)
"""Markers that open reasoning, and that lead from reasoning to the answer."""

_START: Final = "<|start|>"
_CHANNEL: Final = "<|channel|>"
_ENDS: Final = tuple((marker, HEADER) for marker in ("<|end|>", CALL_END, "<|return|>", _START))
TRANSITIONS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {REASONING: _ENDS, CONTENT: _ENDS}
"""Markers that leave a state, with the state after each, by state."""

_STARTED: Final = f"{HEADER} after its marker"
_FOREIGN: Final = "message to a tool of its training, or of another role"
_CALL_START: Final = "call before its arguments"
_CALL_TEXT: Final = "call without an object"
_CALL_JSON: Final = "call"

_MARKERS: Final = (*(marker for marker, _ in _ENDS), MESSAGE, _CHANNEL, "<|constrain|>")
_MARKER: Final = re.compile("|".join(map(re.escape, _MARKERS)))
_WORDS: Final = r"(?:(?:assistant|analysis|commentary|final)\s*)*"
_RECIPIENT: Final = re.compile(r"""to=\s*["']?(?P<name>[\w.:/-]*)["']?""")
_LEAD: Final = re.compile(rf"\s*{_WORDS}(?:{_RECIPIENT.pattern}\s*(?:\w+\s*){{0,2}})?")
"""Text before the first marker of a header that no `<|start|>` opens."""
_NEXT: Final = re.compile(
    r"<\|channel\|>\s*(?:analysis|commentary|final)\b[^<]{0,200}"
    r"(?:<\|constrain\|>[^<]{0,80})?<\|message\|>"
)
"""Header behind a message whose end marker is missing."""
_CHANNELS: Final = re.compile("analysis|commentary|final")
_OTHERS: Final = re.compile(r"\s*(?:user|system|developer|tool|functions\.)")
"""Roles other than the model's."""
_READERS: Final = ("", "assistant", "user", "all")  # recipients of messages that are no calls

_MARKS: Final = re.compile(r'["{}]|(?P<end><\|(?:end|call|return|start)\|>)')
"""Marks outside the strings of a call's JSON.

Quotes, braces, and the end of the message; no string begins after the object's end.
"""
_QUOTED_MARKS: Final = re.compile(
    r'\\.|"|(?P<end><\|(?:end|call|return)\|>)(?=<\|start\|>)', re.DOTALL
)
"""Marks within a string: a marker is text there, unless another message begins behind it."""
_QUOTED_MARKERS: Final = (r"\"", *(f"{marker}{_START}" for marker, _ in _ENDS[:3]))


def uses_harmony(tokenizer: Tokenizer) -> bool:
    return THOUGHT[0] in str(tokenizer.chat_template)


class HarmonySplitter(ChannelSplitter):
    """Splitter of messages by their headers: uses the states of its base, not the table.

    A message to a function becomes content of the form `to=functions.NAME<|message|>{…}<|call|>`,
    whatever its header; `functions` are those that may be called. Without any, such messages are
    dropped.
    """

    def __init__(self, functions: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(HEADER, {})
        named = (tool["function"] for tool in functions)
        self._parameters = {
            each["name"]: [*properties_of(each.get("parameters"))] for each in named
        }
        self._name = ""  # function of the current call
        self._quoted = False  # within a string of a call's JSON
        self._depth = 0  # open braces in a call's JSON

    def finish(self, *, complete: bool = True) -> list[Piece]:
        """Return the held text.

        A call whose arguments are missing gets empty arguments, unless the output was cut off.
        """
        self._pieces = []
        if self._in_header and self._unmarked(len(self._held)):
            self.feed("")
        held, self._held = self._held, ""
        if self._in_header:
            if not (self._matched or CALL in held or _MARKER.search(held)):
                self._state = CONTENT
                self._emit(held)
        elif self._state in (_CALL_START, _CALL_TEXT):
            self._emit_call(self._arguments(held) if complete else "{")
        elif self._state == _CALL_JSON or not (
            self._state == _FOREIGN or held.startswith(_CHANNEL)
        ):
            self._emit(held)
        return self._pieces

    def _step(self) -> bool:
        if self._in_header:
            return self._header()
        if self._state == _CALL_START:
            return self._call_start()
        if self._state == _CALL_TEXT:
            return self._call_text()
        if self._state == _CALL_JSON:
            return self._call()
        return self._message()

    def _header(self) -> bool:
        """Read a header up to its end; other text is an answer without header."""
        if self._state == HEADER and not self._may_lead():
            self._state = CONTENT
            return True
        for marker in _MARKER.finditer(self._held):
            if marker[0] in (_CHANNEL, "<|constrain|>"):
                continue
            self._matched = True
            if marker[0] != MESSAGE and self._unmarked(marker.start()):
                return True
            header, self._held = self._held[: marker.start()], self._held[marker.end() :]
            if marker[0] == MESSAGE:
                self._address(header)
            else:
                self._state = _STARTED if marker[0] == _START else HEADER
            return True
        return False

    def _unmarked(self, end: int) -> bool:
        """Enter a call whose arguments are in the header up to `end`, without `<|message|>`.

        Returns False if there are none.
        """
        header, brace, _ = self._held[:end].partition("{")
        if not brace or not _RECIPIENT.search(header):
            return False
        self._held = self._held[len(header) :]
        self._address(header)
        return True

    def _may_lead(self) -> bool:
        marker = _MARKER.search(self._held)
        if marker is not None:
            return _LEAD.fullmatch(self._held, 0, marker.start()) is not None
        held = longest_overlap(self._held, _MARKERS)
        return _LEAD.fullmatch(self._held, 0, len(self._held) - held, partial=True) is not None

    def _address(self, header: str) -> None:
        recipients = _RECIPIENT.findall(header)
        name = recipients[-1] if recipients else ""
        function = name.removeprefix("functions.")
        channels = _CHANNELS.findall(_RECIPIENT.sub("", header))
        if self._state == _STARTED and _OTHERS.match(header):
            self._state = _FOREIGN
        elif self._calls(name, function):
            self._state, self._name = _CALL_START, function
            self._quoted, self._depth = False, 0
        elif name not in _READERS:
            self._state = _FOREIGN
        elif channels and channels[-1] == "analysis":
            self._state = REASONING
        else:
            self._state = CONTENT

    def _calls(self, recipient: str, function: str) -> bool:
        if not self._parameters or not function:
            return False
        # Without `functions.`, the name must be that of a function.
        return function != recipient or function in self._parameters

    def _message(self) -> bool:
        marker = _MARKER.search(self._held)
        if marker is None:
            certain = len(self._held) - longest_overlap(self._held, _MARKERS)
            self._pass(certain)
            return False
        self._pass(marker.start())
        if marker[0] == _CHANNEL:
            header = _NEXT.match(self._held, partial=True)
            if header is not None and header.partial:
                return False
            if header is not None:
                self._state = HEADER
                return True
        self._held = self._held[len(marker[0]) :]
        if (marker[0], HEADER) in _ENDS:
            self._matched = True
            self._state = _STARTED if marker[0] == _START else HEADER
        return True

    def _pass(self, length: int) -> None:
        if self._state != _FOREIGN:  # messages to other recipients are dropped
            self._emit(self._held[:length])
        self._held = self._held[length:]

    def _call_start(self) -> bool:
        self._held = self._held.lstrip()
        marker = _MARKER.match(self._held)
        if marker is None and any(text.startswith(self._held) for text in _MARKERS):
            return False
        if marker is None and self._held[0] == "{":
            self._state = _CALL_JSON
            self._emit(f"{CALL}{self._name}{MESSAGE}")
        elif marker is None or (marker[0], HEADER) in _ENDS:
            self._state = _CALL_TEXT
        else:
            self._held = self._held[len(marker[0]) :]
        return True

    def _call_text(self) -> bool:
        end = next((m for m in _MARKER.finditer(self._held) if (m[0], HEADER) in _ENDS), None)
        if end is None:
            return False
        text, self._held = self._held[: end.start()], self._held[end.end() :]
        self._emit_call(self._arguments(text))
        self._state = _STARTED if end[0] == _START else HEADER
        return True

    def _emit_call(self, arguments: str) -> None:
        self._emit(f"{CALL}{self._name}{MESSAGE}{arguments}")
        if arguments != "{":
            self._emit(CALL_END)

    def _arguments(self, text: str) -> str:
        """Convert arguments that begin with no object to JSON.

        Accepts an object within quotes, a list or a code fence; any other text is the value of the
        only parameter.
        """
        text = text.strip()
        if not text:
            return "{}"
        value = _unwrapped(text)
        if not isinstance(value, dict):
            names = self._parameters.get(self._name, [])
            value = {names[0] if len(names) == 1 else "input": text}
        return json.dumps(value, ensure_ascii=False)

    def _call(self) -> bool:
        """Emit a call up to the marker that ends it: arguments may spell markers."""
        at = 0
        while match := (_QUOTED_MARKS if self._quoted else _MARKS).search(self._held, at):
            if match["end"]:
                quote = '"' if self._quoted else ""  # an open string would swallow the further text
                self._emit(self._held[: match.start()] + quote + CALL_END)
                self._held = self._held[match.end() :]
                self._state = _STARTED if match["end"] == _START else HEADER
                return True
            at = match.end()
            if match[0] == '"':
                self._quoted = not self._quoted and self._depth > 0
            elif match[0] in "{}":
                self._depth += 1 if match[0] == "{" else -1
        markers: Iterable[str] = _QUOTED_MARKERS if self._quoted else _MARKERS[:4]
        certain = len(self._held) - longest_overlap(self._held[at:], markers)
        self._emit(self._held[:certain])
        self._held = self._held[certain:]
        return False


def _unwrapped(text: str) -> Any:
    """Parse JSON, also in a code fence; unwrap a quoted value or the only item of a list."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text.strip("`").removeprefix("json"), strict=False)
        if isinstance(value, str):
            value = json.loads(value, strict=False)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return value
    return None
