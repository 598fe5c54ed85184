"""The messages of Solar Open.

    <|think|>reasoning<|end|><|begin|>assistant<|content|>an answer<|end|>

Tool calls are a message of their own, from `<|tool_calls|>` to `<|calls|>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from omlx.text.channels import CONTENT, HEADER, REASONING, TOOL

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

THOUGHT: Final = ("<|think|>", "<|end|><|begin|>assistant<|content|>")
"""Markers that open reasoning, and that lead from it to the answer."""

TRANSITIONS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    HEADER: (
        ("<|think|>", REASONING),
        ("<|content|>", CONTENT),
        ("<|tool_calls|>", TOOL),
    ),
    REASONING: (("<|end|>", HEADER),),
    CONTENT: (("<|end|>", HEADER),),
}
"""By state, the markers that leave it and the states that they lead to."""


def uses_channels(tokenizer: TokenizerWrapper) -> bool:
    return "<|begin|>assistant<|think|>" in str(tokenizer.chat_template)
