"""The markup of gpt-oss, which mlx-lm has no parser for.

    <|channel|>analysis<|message|>a thought<|end|><|start|>assistant<|channel|>final<|message|>an answer

A message goes through a channel, to a function where it has a recipient, on whatever channel. Which models write so is
told by the chat template.
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
"""What opens a thought, and what leads from it to the answer."""

_CALL: Final = (CALL, TOOL)
_OF_THOUGHT: Final = f"{HEADER} of a thought"
_OF_ANSWER: Final = f"{HEADER} of an answer"
_ENDS: Final = tuple(
    (marker, HEADER) for marker in ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
)

TRANSITIONS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    HEADER: (
        ("<|channel|>analysis", _OF_THOUGHT),
        ("<|channel|>commentary", _OF_ANSWER),
        ("<|channel|>final", _OF_ANSWER),
        _CALL,
    ),
    _OF_THOUGHT: (("<|message|>", REASONING), _CALL),
    _OF_ANSWER: (("<|message|>", CONTENT), _CALL),
    REASONING: _ENDS,
    CONTENT: _ENDS,
}


def uses_harmony(tokenizer: TokenizerWrapper) -> bool:
    """Whether this model writes so."""
    return THOUGHT[0] in str(tokenizer.chat_template)
