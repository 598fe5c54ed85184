"""Messages to token ids, through the model's own chat template.

Rendering the same messages twice gives the same ids. Images are markers in the template's text,
which the model's vision replaces. Rerankers have a prompt for each document: Qwen3-Reranker was
released with its format in its description only (Zhang et al., 2025, arXiv:2506.05176); later
models have theirs in the chat template, with the roles `query` and `document`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from omlx.engine.vision.spans import ImageSpan, PreparedImage, words
from omlx.errors import BadRequest, Param, Reason
from omlx.settings.types import RENDERER_ARGUMENTS
from omlx.text.calls.markup import call_format, write_calls
from omlx.text.reasoning import opens_reasoning
from omlx.text.template.abilities import TemplateAbilities, template_abilities
from omlx.text.template.conversation import BETWEEN, adapt
from omlx.text.template.process import render_template
from omlx.text.tokens import MAX_TOKENS, Tokenizer, check_length, encode, per_tokenizer
from omlx.text.tools import Tool, ToolUse, template_tools, tools_as_text

Message: TypeAlias = Mapping[str, Any]

KEPT_PROMPTS: Final = 8
"""Generation prompts of a template — with reasoning and without, by role of the last message."""

_generation_prompts: Final = per_tokenizer(lambda tokenizer: list[str]())


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: tuple[int, ...]
    thinking: bool = False  # the template has opened reasoning, in which the output starts
    # Tokens of the messages, repeated by the next turn; the generation prompt follows.
    stable: int = 0
    changes: tuple[Reason, ...] = ()  # rewriting of messages for the template
    images: tuple[PreparedImage, ...] = ()
    spans: tuple[ImageSpan, ...] = ()  # places of `images`, in order

    @property
    def words(self) -> tuple[int, ...]:
        """Token ids without those of images."""
        return tuple(words(self.tokens)) if self.spans else self.tokens


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    variables: Mapping[str, Any] | None = None,
    *,
    tools: ToolUse | None = None,
    continue_last: bool = False,
    context_length: int = MAX_TOKENS,
    placer: ImagePlacer | None = None,
) -> Prompt:
    """Render the prompt for the next assistant message, or to continue the last (`continue_last`).

    `variables` are additional template variables. Raises BadRequest with the template's own error,
    for tools unusable with this model, and for a prompt far longer than `context_length`. Image
    parts of messages hold a `PreparedImage`; `placer` puts them into the prompt.
    """
    variables = dict(variables or {})
    _check(tokenizer, messages, variables, continue_last)
    for message in messages:
        if message["role"] == "user":
            # Before rendering: renders of a model take turns.
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
    with _template_errors("messages"):
        text = rendered(
            add_generation_prompt=not continue_last, continue_final_message=continue_last
        )
        if placer is not None and images:
            tokens, spans = encode_images(tokenizer, text, images, placer, context_length)
        else:
            tokens = tuple(encode(tokenizer, text, context_length, special=False))
        stable = 0
        if not continue_last:
            bare = partial(rendered, add_generation_prompt=False, continue_final_message=False)
            stable = _stable(tokenizer, tokens, text, bare)
    if not tokens:
        raise BadRequest("template.empty", param="messages")
    thinking = opens_reasoning(tokenizer, tokens)
    changes = (*(change for change in listed if change not in changes), *changes)
    return Prompt(tokens, thinking, stable, changes, images, spans)


def _with_tools(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    tools: ToolUse | None,
    abilities: TemplateAbilities,
) -> tuple[Sequence[Message], dict[str, Any], tuple[Reason, ...]]:
    """Add the functions to the variables, or to the system message for other templates.

    Raises BadRequest for a model without tools.
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


def _described(tokenizer: Tokenizer, messages: Sequence[Message], use: ToolUse) -> list[Message]:
    function = {"name": "FUNCTION", "arguments": {"ARGUMENT": "VALUE"}}
    example = write_calls(tokenizer, [{"id": "1", "function": function}])
    text = tools_as_text(use.functions, example)
    first, *rest = messages
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}{BETWEEN}{text}"}, *rest]


def _check_calls(tokenizer: Tokenizer, use: ToolUse) -> None:
    form = call_format(tokenizer)
    if form is None:
        raise BadRequest("tools.no_format", param="tools")
    if use.forced and form.written is None:
        raise BadRequest("tools.cannot_force", param="tool_choice")


def _check(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    variables: Mapping[str, Any],
    continue_last: bool,
) -> None:
    """Raise BadRequest for reserved variables, a missing template, or a wrong last message."""
    for name in variables:
        if name in RENDERER_ARGUMENTS:  # would replace the template itself
            raise BadRequest("template.reserved", param="chat_template_kwargs", name=name)
    if not tokenizer.has_chat_template:
        raise BadRequest("template.missing", param="messages")
    if continue_last and messages[-1]["role"] != "assistant":
        role = messages[-1]["role"]
        raise BadRequest("template.continue", param="continue_final_message", role=role)


def _stable(tokenizer: Tokenizer, tokens: Sequence[int], text: str, bare: Callable[[], str]) -> int:
    """Return the number of tokens before the generation prompt, which the text of `bare` lacks.

    Only the generation prompt is encoded again, not the whole. 0 if that text is no prefix. Known
    generation prompts are recognised: to render a long conversation twice takes time.
    """
    known = _generation_prompts(tokenizer)
    suffix = max(filter(text.endswith, known), key=len, default="")
    if not suffix:
        beginning = bare()
        if not text.startswith(beginning):
            return 0
        suffix = text[len(beginning) :]
        if not suffix:
            return len(tokens)
        known[:] = [suffix, *known[: KEPT_PROMPTS - 1]]
    return max(0, len(tokens) - len(tokenizer.encode(suffix, add_special_tokens=False)))


@contextmanager
def _template_errors(param: str) -> Iterator[None]:
    try:
        yield
    except BadRequest:
        raise
    except Exception as error:  # of any type: a template is a program, and some are Python
        detail = str(error) or type(error).__name__
        raise BadRequest("template.failed", param=param, detail=detail) from error


Images: TypeAlias = Sequence[PreparedImage]
Spans: TypeAlias = tuple[ImageSpan, ...]

IMAGE: Final = "image"
"""Type of a part with a `PreparedImage` under the same name."""


class ImagePlacer(Protocol):
    """Placer of images in the text of a prompt: see `omlx.models.vision.family.VisionFamily`."""

    @property
    def marker(self) -> str: ...

    @property
    def text_marker(self) -> str | None: ...

    def expand(self, text: str, images: Images) -> str: ...

    def place(self, ids: Sequence[int], images: Images) -> tuple[tuple[int, ...], Spans]: ...


def texts_of(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if "text" in part)


def separate_images(
    messages: Sequence[Message], text_marker: str | None = None
) -> tuple[list[Message], tuple[PreparedImage, ...]]:
    """Return messages as templates read them, and their images in order.

    With `text_marker` contents become texts, in which the marker replaces each image.
    """
    shown, images = list[Message](), list[PreparedImage]()
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            images += (part["image"] for part in content if part["type"] == IMAGE)
            parts = [{"type": IMAGE} if part["type"] == IMAGE else part for part in content]
            message = {**message, "content": parts}
            if text_marker is not None:
                message["content"] = "".join(part.get("text", text_marker) for part in parts)
        shown.append(message)
    return shown, tuple(images)


def encode_images(
    tokenizer: Tokenizer, text: str, images: Images, placer: ImagePlacer, context_length: int
) -> tuple[tuple[int, ...], Spans]:
    """Return a rendered prompt's ids with those of its images, and the image spans.

    Raises BadRequest unless the template has written a marker for each image.
    """
    if placer.marker not in text:
        raise BadRequest("image.template", param="messages")
    expanded = placer.expand(text, images)
    return placer.place(encode(tokenizer, expanded, context_length, special=False), images)


def check_markers(messages: Sequence[Message], variables: Mapping[str, Any], marker: str) -> None:
    """Raise BadRequest if a text contains the image marker: no place for an image."""
    texts = [text for message in messages for text in texts_of(message["content"])]
    if any(marker in text for text in (*texts, str(variables))):
        raise BadRequest("image.marker", param="messages")


QWEN_INSTRUCTION: Final = (
    "Given a web search query, retrieve relevant passages that answer the query"
)
_QWEN: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def qwen_prompt(query: str, document: str, instruction: str | None) -> str:
    return _QWEN.format(instruction=instruction or QWEN_INSTRUCTION, query=query, document=document)


def template_prompt(
    tokenizer: Tokenizer, query: str, document: str, instruction: str | None
) -> str:
    """Return the prompt of the model's chat template; `instruction` is its system message.

    Raises BadRequest with the template's own error.
    """
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    if instruction is not None:
        messages.insert(0, {"role": "system", "content": instruction})
    with _template_errors("model"):
        return render_template(tokenizer, messages, {}, add_generation_prompt=True)


def encode_document(tokenizer: Tokenizer, prompt: str, limit: int, at: int) -> list[int]:
    """Return the ids of the prompt about the document with index `at`.

    Raises BadRequest, naming the document, if there are more than `limit` tokens.
    """
    try:
        tokens = encode(tokenizer, prompt, limit, special=False)
    except BadRequest as error:
        raise _too_long(at, error.params["tokens"], limit) from error
    if len(tokens) > limit:
        raise _too_long(at, len(tokens), limit)
    return tokens


def encode_pair(
    tokenizer: Tokenizer, query: str, document: str, limit: int, at: int
) -> tuple[list[int], list[int]]:
    """Return the ids of query and document, and their segment ids (0 query, 1 document).

    The tokenizer adds the tokens between them. Raises as `encode_document`.
    """
    try:
        check_length(tokenizer, query + document, limit, "documents")
    except BadRequest as error:
        raise _too_long(at, error.params["tokens"], limit) from error
    encoded = tokenizer._tokenizer(query, document, return_token_type_ids=True)
    tokens = list(encoded["input_ids"])
    if len(tokens) > limit:
        raise _too_long(at, len(tokens), limit)
    return tokens, list(encoded["token_type_ids"])


def _too_long(at: int, tokens: Param, limit: int) -> BadRequest:
    field = f"documents[{at}]"
    return BadRequest("rerank.too_long", param=field, field=field, tokens=tokens, limit=limit)
