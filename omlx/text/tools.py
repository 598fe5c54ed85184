"""The functions that a request lets the model call, and how it may call them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from omlx.errors import BadRequest
from omlx.text.call_markup import call_markup

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`functions` are as templates know them: `{"type": "function", "function": {"name": …, "parameters": …}}`.

    `forced`: the answer is a call, of `name` where that is set. `single`: of one call at most. `strict` are the names
    of those whose calls must have arguments of their schema, also where nothing is forced.
    """

    functions: tuple[Mapping[str, Any], ...]
    forced: bool = False
    name: str | None = None
    single: bool = False
    strict: frozenset[str] = frozenset()

    @property
    def allowed(self) -> tuple[Mapping[str, Any], ...]:
        """The functions that may be called, each as `{"name": …, "parameters": …}`."""
        told = tuple(each["function"] for each in self.functions)
        return (
            told if self.name is None else tuple(each for each in told if each["name"] == self.name)
        )


def opening(tokenizer: TokenizerWrapper, use: ToolUse) -> str:
    """The beginning of an answer that is sure to be a call, if no grammar holds the model to one; else empty.

    Raises BadRequest if the model has no tools at all, or if nobody knows how its calls begin.
    """
    form = call_markup(tokenizer, use.functions)
    if form is None:
        raise BadRequest("tools.no_format", param="tools")
    if not use.forced or form.form.written is not None:
        return ""
    text = form.opening(use.name)
    if text is None:
        raise BadRequest("tools.cannot_force", param="tool_choice")
    return text
