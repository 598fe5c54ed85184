"""The markup of gpt-oss ("harmony"), for which mlx-lm has no parser.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>final<|message|>an answer

A message goes through a channel; a message with a recipient, on any channel, is a tool call. The
chat template shows whether a model uses this markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from omlx.text.channels import CONTENT, HEADER, REASONING, TOOL

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

CALL: Final = "to=functions."
THOUGHT: Final = (
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
)
"""Markers that open reasoning, and that lead from it to the answer."""

_CALL: Final = (CALL, TOOL)
_THOUGHT_HEADER: Final = f"{HEADER} of reasoning"
_ANSWER_HEADER: Final = f"{HEADER} of an answer"
_ENDS: Final = tuple(
    (marker, HEADER) for marker in ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
)

TRANSITIONS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    HEADER: (
        ("<|channel|>analysis", _THOUGHT_HEADER),
        ("<|channel|>commentary", _ANSWER_HEADER),
        ("<|channel|>final", _ANSWER_HEADER),
        _CALL,
    ),
    _THOUGHT_HEADER: (("<|message|>", REASONING), _CALL),
    _ANSWER_HEADER: (("<|message|>", CONTENT), _CALL),
    REASONING: _ENDS,
    CONTENT: _ENDS,
}
"""By state, the markers that leave it and the states that they lead to."""


def uses_harmony(tokenizer: TokenizerWrapper) -> bool:
    return THOUGHT[0] in str(tokenizer.chat_template)
