"""Messages to token ids, through the model's own chat template.

Templates come with downloaded models and are code. transformers renders them in Jinja's `ImmutableSandboxedEnvironment`
and rebuilds messages and variables out of plain JSON values first; nothing here renders one any other way. The caller's
messages are never changed: rendering the same ones twice gives the same ids.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omlx.errors import BadRequest
from omlx.text.tools import ToolUse, opening

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`thinking`: the template has already opened the reasoning, the output starts inside of it. `opening` is the end
    of the prompt that belongs to the answer: the beginning of a call that the model has to make.

    The first `stable` tokens are the messages themselves, as the next turn will repeat them; what follows is what the
    template puts before an answer.
    """

    tokens: tuple[int, ...]
    thinking: bool = False
    opening: str = ""
    stable: int = 0


def render(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None = None,
    *,
    tools: ToolUse | None = None,
    continue_last: bool = False,
) -> Prompt:
    """The prompt for the next assistant message, or for the rest of the last one (`continue_last`).

    `variables` are extra names that the template may read. Raises BadRequest with the template's own complaint, and for
    tools that this model cannot be given.
    """
    for name in variables or {}:
        if name in _reserved():
            raise BadRequest("template.reserved", param="chat_template_kwargs", name=name)
    if not tokenizer.has_chat_template:
        raise BadRequest("template.missing", param="messages")
    if continue_last and messages[-1]["role"] != "assistant":
        raise BadRequest(
            "template.continue", param="continue_final_message", role=messages[-1]["role"]
        )
    beginning = opening(tokenizer, tools) if tools is not None else ""
    given = {"tools": [dict(tool) for tool in tools.functions]} if tools is not None else {}
    rendered = partial(_rendered, tokenizer, messages, given | dict(variables or {}), continue_last)
    try:
        tokens = rendered()
        stable = 0 if continue_last else max(0, len(tokens) - _suffix(tokenizer, rendered))
    except Exception as error:  # of any type: a template is a program, and some are Python
        raise BadRequest(
            "template.failed", param="messages", detail=str(error) or type(error).__name__
        ) from error
    if not tokens:
        raise BadRequest("template.empty", param="messages")
    thinking = _opens_thinking(tokenizer, tokens)
    if not beginning:
        return Prompt(tuple(tokens), thinking, stable=stable)
    closing = f"\n{tokenizer.think_end}\n\n" if thinking else ""
    ending = tokenizer.encode(closing + beginning, add_special_tokens=False)
    return Prompt((*tokens, *ending), False, beginning, stable)


def _rendered(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    continue_last: bool,
    **more: bool,
) -> Any:
    """What the template makes of copies of the messages: ids, or a text if `tokenize` is False."""
    return tokenizer.apply_chat_template(
        [deepcopy(dict(message)) for message in messages],
        **{"add_generation_prompt": not continue_last, "continue_final_message": continue_last}
        | more,
        **deepcopy(dict(variables)),
    )


def _suffix(tokenizer: TokenizerWrapper, rendered: Callable[..., Any]) -> int:
    """How many tokens a template puts before an answer: those of the text that is not there without it.

    Only that text is encoded once more, not the prompt. A template that says something else altogether without it
    leaves no stable part: all tokens.
    """
    text = rendered(tokenize=False)
    bare = rendered(tokenize=False, add_generation_prompt=False)
    suffix = text[len(bare) :] if text.startswith(bare) else text
    return len(tokenizer.encode(suffix, add_special_tokens=False)) if suffix else 0


def _opens_thinking(tokenizer: TokenizerWrapper, tokens: list[int]) -> bool:
    """Whether the prompt ends in an opening marker and white space."""
    if not tokenizer.has_thinking:
        return False
    start = tokenizer.rfind_think_start(tokens)
    behind = tokens[start + len(tokenizer.think_start_tokens) :]
    return start >= 0 and not str(tokenizer.decode(behind)).strip()


@cache
def _reserved() -> frozenset[str]:
    """Not variables of a template but arguments of the renderer: a request that could set them could bring its own
    template."""
    from transformers import PreTrainedTokenizerBase  # noqa: PLC0415 — slow, and there with the first tokenizer

    return frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {
        "messages"
    }
