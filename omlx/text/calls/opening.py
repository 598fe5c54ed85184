"""The beginning of a forced call, for models whose calls no grammar enforces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omlx.errors import BadRequest
from omlx.text.calls.markup import call_markup
from omlx.text.tools import ToolUse

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def opening(tokenizer: TokenizerWrapper, use: ToolUse) -> str:
    """Return the beginning of a forced call for the prompt; empty if a grammar enforces the call,
    or none is forced.

    Raises BadRequest if the model has no tool calls, or a format whose opening is unknown.
    """
    markup = call_markup(tokenizer, use.functions)
    if markup is None:
        raise BadRequest("tools.no_format", param="tools")
    if not use.forced or markup.form.written is not None:
        return ""
    text = markup.opening(use.name)
    if text is None:
        raise BadRequest("tools.cannot_force", param="tool_choice")
    return text
