"""The markup of gpt-oss ("harmony"), for which mlx-lm has no parser.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>final<|message|>an answer

A message goes through a channel. A message to a function, on any channel, is a tool call; the code
that a model writes to tools that only its training had is dropped. The chat template shows whether
a model uses this markup.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import regex as re

from omlx.text.channels import CONTENT, HEADER, REASONING, ChannelSplitter, Piece
from omlx.text.stop_strings import overlap

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

CALL: Final = "to=functions."
THOUGHT: Final = (
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
)
"""Markers that open reasoning, and that lead from it to the answer."""

_RECIPIENT: Final = re.compile(
    r"to=(?P<name>[\w.:/-]+)"
    r"(?P<rest>[^<{]*(?:<\|(?:channel|constrain)\|>[^<{]*)*<\|message\|>)"
)
"""A header from its recipient on."""
_READERS: Final = ("assistant", "user", "all")
"""Recipients of messages that are no calls."""
_THOUGHT_HEADER: Final = f"{HEADER} of reasoning"
_ANSWER_HEADER: Final = f"{HEADER} of an answer"
_FOREIGN: Final = f"{HEADER} of a message to a tool of its training"
_CALL_TEXT: Final = "call"
_ENDS: Final = tuple(
    (marker, HEADER) for marker in ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
)
_MARKS: Final = re.compile(r'(?P<quote>")|(?P<end><\|(?:end|call|return|start)\|>)')
"""What counts in a call outside the strings of its JSON: a string, or the end of the message."""
_QUOTED_MARKS: Final = re.compile(
    r'\\.|(?P<quote>")|(?P<end><\|(?:end|call|return)\|>)(?=<\|start\|>)', re.DOTALL
)
"""What counts within a string: a marker is text there, unless another message begins behind it."""
_MARKERS: Final = tuple(marker for marker, _ in _ENDS)
_QUOTED_MARKERS: Final = (r"\"", *(f"{marker}<|start|>" for marker in _MARKERS[:3]))

TRANSITIONS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    HEADER: (
        ("<|channel|>analysis", _THOUGHT_HEADER),
        ("<|channel|>commentary", _ANSWER_HEADER),
        ("<|channel|>final", _ANSWER_HEADER),
    ),
    _THOUGHT_HEADER: (("<|message|>", REASONING),),
    _ANSWER_HEADER: (("<|message|>", CONTENT),),
    _FOREIGN: _ENDS,
    REASONING: _ENDS,
    CONTENT: _ENDS,
}
"""By state, the markers that leave it and the states that they lead to."""


def uses_harmony(tokenizer: TokenizerWrapper) -> bool:
    return THOUGHT[0] in str(tokenizer.chat_template)


class HarmonySplitter(ChannelSplitter):
    """Splitter whose messages to `functions` are content that begins with `CALL`."""

    def __init__(self, functions: Collection[str]) -> None:
        super().__init__(HEADER, TRANSITIONS)
        self._functions = functions
        self._quoted = False  # within a string of a call's JSON

    def _step(self, pieces: list[Piece]) -> bool:
        if self._state == _CALL_TEXT:
            return self._call(pieces)
        if not self._in_header or self._state == _FOREIGN:
            return super()._step(pieces)
        recipient = _RECIPIENT.search(self._held, partial=True)
        markers = (self._held.find(marker) for marker, _ in TRANSITIONS[self._state])
        first = min((at for at in markers if at >= 0), default=len(self._held))
        if recipient is None or recipient.start() >= first:
            return super()._step(pieces)
        if not recipient.partial:
            self._address(recipient, pieces)
        return not recipient.partial

    def _address(self, recipient: re.Match[str], pieces: list[Piece]) -> None:
        """Enter the message that follows a header with a recipient."""
        name, rest = recipient["name"], recipient["rest"]
        function = name.removeprefix("functions.")
        self._matched = True
        self._held = self._held[recipient.end() :]
        if function != name or name in self._functions:
            self._state, self._quoted = _CALL_TEXT, False
            self._emit(CALL + function + rest, pieces)
        elif name not in _READERS:
            self._state = _FOREIGN
        elif "analysis" in rest or (self._state == _THOUGHT_HEADER and "<|channel|>" not in rest):
            self._state = REASONING
        else:
            self._state = CONTENT

    def _call(self, pieces: list[Piece]) -> bool:
        """Pass on a call up to the marker that ends it: arguments may spell markers."""
        at = 0
        while match := (_QUOTED_MARKS if self._quoted else _MARKS).search(self._held, at):
            if match["end"]:
                self._emit(self._held[: match.start()], pieces)
                self._held, self._state = self._held[match.end() :], HEADER
                return True
            at, self._quoted = match.end(), self._quoted != bool(match["quote"])
        markers = _QUOTED_MARKERS if self._quoted else _MARKERS
        certain = len(self._held) - max(overlap(self._held[at:], marker) for marker in markers)
        self._emit(self._held[:certain], pieces)
        self._held = self._held[certain:]
        return False
