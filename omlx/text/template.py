"""Messages to token ids, through the model's own chat template.

Templates come with downloaded models and are code: transformers renders them in Jinja's
`ImmutableSandboxedEnvironment`, in a process of its own (`template_process`).
Rendering the same messages twice gives the same ids.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from omlx.engine.image import ImageSpan, PreparedImage, words
from omlx.errors import BadRequest, Reason
from omlx.text.calls.markup import call_format
from omlx.text.calls.write import write_calls
from omlx.text.conversation import BETWEEN, adapt
from omlx.text.encode import MAX_TOKENS, check_length, encode
from omlx.text.images import (
    ImagePlacer,
    check_markers,
    encode_images,
    separate_images,
    texts_of,
)
from omlx.text.reasoning import opens_reasoning
from omlx.text.template_abilities import TemplateAbilities, template_abilities
from omlx.text.template_process import render_template
from omlx.text.template_tools import Tool, template_tools, tools_as_text
from omlx.text.tools import ToolUse

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt.

    `thinking`: the template has opened reasoning, in which the output starts. The first `stable`
    tokens are the messages, which the next turn repeats; the generation prompt follows. `changes`:
    how the messages were rewritten, because the template does not take them as they are. `images`
    are shown where `spans` say, in order.
    """

    tokens: tuple[int, ...]
    thinking: bool = False
    stable: int = 0
    changes: tuple[Reason, ...] = ()
    images: tuple[PreparedImage, ...] = ()
    spans: tuple[ImageSpan, ...] = ()

    @property
    def words(self) -> tuple[int, ...]:
        """The ids without those of images."""
        return tuple(words(self.tokens)) if self.spans else self.tokens


def render(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None = None,
    *,
    tools: ToolUse | None = None,
    continue_last: bool = False,
    context_length: int = MAX_TOKENS,
    placer: ImagePlacer | None = None,
) -> Prompt:
    """Render the prompt for the next assistant message, or for the rest of the last one
    (`continue_last`).

    `variables` are additional template variables. Raises BadRequest with the template's own error,
    for tools that this model cannot use, and for a prompt that is far longer than `context_length`.
    Image parts of messages hold a `PreparedImage`; `placer` puts them into the prompt.
    """
    variables = dict(variables or {})
    _check(tokenizer, messages, variables, continue_last)
    for message in messages:
        if message["role"] == "user":
            # Before it is rendered: renders of one model take turns.
            for text in texts_of(message["content"]):
                check_length(tokenizer, text, context_length, "messages")
    abilities = template_abilities(tokenizer)
    messages, variables, listed = _with_tools(tokenizer, messages, variables, tools, abilities)
    messages, changes = adapt(
        messages, abilities, partial(write_calls, tokenizer), continue_last=continue_last
    )
    shown, images = separate_images(messages, placer.text_marker if placer else None)
    if placer is not None and images:
        check_markers(messages, variables, placer.marker)
    rendered = partial(render_template, tokenizer, shown, variables)
    spans: tuple[ImageSpan, ...] = ()
    try:
        text = rendered(
            add_generation_prompt=not continue_last, continue_final_message=continue_last
        )
        if placer is not None and images:
            tokens, spans = encode_images(tokenizer, text, images, placer, context_length)
        else:
            tokens = tuple(encode(tokenizer, text, context_length, special=False))
        stable = 0
        if not continue_last:
            bare = rendered(add_generation_prompt=False, continue_final_message=False)
            stable = _stable(tokenizer, tokens, text, bare)
    except BadRequest:
        raise
    except Exception as error:  # of any type: a template is a program, and some are Python
        detail = str(error) or type(error).__name__
        raise BadRequest("template.failed", param="messages", detail=detail) from error
    if not tokens:
        raise BadRequest("template.empty", param="messages")
    thinking = opens_reasoning(tokenizer, tokens)
    changes = (*(change for change in listed if change not in changes), *changes)
    return Prompt(tokens, thinking, stable, changes, images, spans)


def _with_tools(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    tools: ToolUse | None,
    abilities: TemplateAbilities,
) -> tuple[Sequence[Message], dict[str, Any], tuple[Reason, ...]]:
    """Return messages and variables with the functions: at the end of the system message where the
    template lists none. Raises BadRequest for a model without tools.
    """
    listed: list[Tool] | None = [] if abilities.needs_tools else None
    changes: tuple[Reason, ...] = ()
    if tools is not None:
        _check_calls(tokenizer, tools)
        if abilities.tools:
            forms = {"schemas": abilities.schemas, "definitions": abilities.definitions}
            listed = template_tools(tools.functions, **forms)
            if not abilities.tools_alone and messages[0]["role"] != "system":
                messages = [{"role": "system", "content": ""}, *messages]
                changes = (Reason("conversation.added"),)
        else:
            messages = _described(tokenizer, messages, tools)
            changes = (Reason("conversation.tools_in_system"),)
    if listed is not None:
        variables = {"tools": listed, **variables}
    return messages, dict(variables), changes


def _described(
    tokenizer: TokenizerWrapper, messages: Sequence[Message], use: ToolUse
) -> list[Message]:
    """The messages with the functions as a text of the system message."""
    function = {"name": "FUNCTION", "arguments": {"ARGUMENT": "VALUE"}}
    example = write_calls(tokenizer, [{"id": "1", "function": function}])
    text = tools_as_text(use.functions, example)
    first, *rest = messages
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}{BETWEEN}{text}"}, *rest]


def _check_calls(tokenizer: TokenizerWrapper, use: ToolUse) -> None:
    """Raise BadRequest for a model without tool calls, and for a forced call in a form that is not
    known.
    """
    form = call_format(tokenizer)
    if form is None:
        raise BadRequest("tools.no_format", param="tools")
    if use.forced and form.written is None:
        raise BadRequest("tools.cannot_force", param="tool_choice")


def _check(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    continue_last: bool,
) -> None:
    """Raise BadRequest for reserved variables, a model without a template, or a last message of
    another role.
    """
    for name in variables:
        if name in _reserved():
            raise BadRequest("template.reserved", param="chat_template_kwargs", name=name)
    if not tokenizer.has_chat_template:
        raise BadRequest("template.missing", param="messages")
    if continue_last and messages[-1]["role"] != "assistant":
        role = messages[-1]["role"]
        raise BadRequest("template.continue", param="continue_final_message", role=role)


def _stable(tokenizer: TokenizerWrapper, tokens: Sequence[int], text: str, bare: str) -> int:
    """Return how many tokens come before the generation prompt, which `bare` lacks.

    Only its text is encoded again, not the prompt. Where the text without it is no prefix of the
    text with it, no part is stable.
    """
    if not text.startswith(bare):
        return 0
    suffix = text[len(bare) :]
    if not suffix:
        return len(tokens)
    return max(0, len(tokens) - len(tokenizer.encode(suffix, add_special_tokens=False)))


@cache
def _reserved() -> frozenset[str]:
    """Arguments of the renderer: a request that could set them could bring its own template."""
    # Imported with the first tokenizer: slow.
    from transformers import PreTrainedTokenizerBase  # noqa: PLC0415

    signature = inspect.signature(PreTrainedTokenizerBase.apply_chat_template)
    return frozenset(signature.parameters) | {"messages"}
