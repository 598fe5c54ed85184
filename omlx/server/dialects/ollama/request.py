"""Ollama's chat and completions: a JSON body to a `GenerationRequest`.

A body without messages or prompt loads the model. Unknown fields are ignored; options without
effect are named in a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import time
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from omlx.errors import BadRequest, Reason
from omlx.server.dialects.ollama.encoder import AnswerEncoder, ChatEncoder, CompletionEncoder, Head
from omlx.server.dialects.ollama.fields import RANDOM_SEED, Configured, iso
from omlx.server.http.errors import field_error
from omlx.server.http.transport import NDJSON, Json
from omlx.server.request import tooling
from omlx.server.request.content import IMAGE, content_of, image_part, text_part
from omlx.server.request.dialect import Encoder, Exchange, Wire, json_line
from omlx.server.request.fields import (
    FUNCTION,
    Body,
    Listed,
    Scheduled,
    Text,
    ToolType,
    stops,
)
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import GenerationStream
from omlx.server.request.structured_output import json_output
from omlx.server.request.tooling import skipped
from omlx.text.tools import ToolUse

_DATA: Final = "data:"
_BASE64: Final = "data:;base64,"


class OllamaCalledFunction(Body):
    name: Text
    arguments: dict[str, Any] | str | None = None


class OllamaToolCall(Body):
    function: OllamaCalledFunction
    id: str | None = None


class OllamaMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Listed[str] | None = None
    tool_calls: Listed[OllamaToolCall] | None = None
    tool_call_id: str | None = None
    tool_name: str | None = None


def rendered(messages: Sequence[OllamaMessage]) -> list[Json]:
    """Return the conversation with ids for calls and results, optional in Ollama's messages.

    A result without an id answers the first open call of its function. Raises BadRequest for images
    and calls in roles without them.
    """
    waiting: list[tuple[str, str]] = []  # id and function of each call without a result
    conversation = []
    for at, message in enumerate(messages):
        calls = _calls(message, at)
        waiting += [(call["id"], call["function"]["name"]) for call in calls]
        plain: Json = {
            "role": "system" if message.role == "developer" else message.role,
            "content": content(message.content, message.images, message.role, f"messages[{at}]"),
        }
        if message.thinking and message.role == "assistant":
            plain["reasoning_content"] = message.thinking
        if calls:
            plain["tool_calls"] = calls
        if message.role == "tool":
            plain["tool_call_id"] = _answered(message, waiting) or _id(at, 0)
            if message.tool_name is not None:
                plain["name"] = message.tool_name
        conversation.append(plain)
    return tooling.with_names(conversation)


def content(
    text: str | None, images: Sequence[str] | None, role: str, field: str
) -> str | list[Json]:
    """Return the text alone, or parts with the images first."""
    parts = []
    for at, image in enumerate(images or ()):
        place = f"{field}.images[{at}]".removeprefix(".")
        if role not in ("user", "tool"):
            raise field_error("image.role", place)
        uri = image if image[: len(_DATA)].lower() == _DATA else _BASE64 + image
        parts.append(image_part(IMAGE, uri, None, place))
    return content_of([*parts, text_part(text or "")])


def _calls(message: OllamaMessage, at: int) -> list[Json]:
    if message.tool_calls and message.role != "assistant":
        field = f"messages[{at}].tool_calls"
        raise field_error("request.unsupported", field)
    return [
        tooling.call(call.id or _id(at, n), call.function.name, call.function.arguments or {})
        for n, call in enumerate(message.tool_calls or ())
    ]


def _id(at: int, n: int) -> str:
    return f"call_{at}_{n}"


def _answered(message: OllamaMessage, waiting: list[tuple[str, str]]) -> str | None:
    """Return the id of the call answered by a result, and remove the call from `waiting`.

    Without a match, return the message's own id, which may be None.
    """
    for call in waiting:
        if message.tool_call_id is None:
            matches = message.tool_name in (None, call[1])
        else:
            matches = message.tool_call_id == call[0]
        if matches:
            waiting.remove(call)
            return call[0]
    return message.tool_call_id


WIRE: Final = Wire(json_line, idle=b"", media_type=NDJSON)
"""No bytes while a stream is silent — clients parse every line."""
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "template": ("",),
    "context": ([],),
    "width": (0,),
    "height": (0,),
    "steps": (0,),
}
"""Unsupported fields, each with the values that request nothing."""


class Generating(Configured, Scheduled):
    """Fields shared by the generating endpoints."""

    ENCODER: ClassVar[type[AnswerEncoder]]

    stream: bool | None = None
    format: Any = None
    think: bool | Literal["low", "medium", "high"] | None = None
    truncate: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def empty(self) -> bool:
        """Whether the body has nothing to answer and only loads the model."""
        raise NotImplementedError

    def exchange(self) -> Exchange:
        """Return the exchange. Raises BadRequest for contradictory fields."""
        streamed = self.stream is not False
        return Exchange(self.generation_request(), streamed, "gen-", self._encoder, WIRE)

    def generation_request(self) -> GenerationRequest:
        """Return the request in no dialect. Raises BadRequest."""
        self.refuse(UNSUPPORTED)
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("request.top_logprobs", param="top_logprobs")
        options = self.given
        return GenerationRequest(
            model=self.id,
            draft_model=options.draft_model,
            template_variables=self._variables(),
            sampling=options.sampling,
            seed=None if options.seed == RANDOM_SEED else options.seed,
            max_tokens=options.max_tokens,
            stop_strings=stops(options.stop),
            top_logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            speculation=options.strategy,
            draft_length=options.draft_length,
            priority=self.urgency,
            timeout_s=self.timeout,
            truncates=self.truncate is not False,
            cuts_text=self.truncate is not False,
            structured_output=json_output(self.format, "format"),
            warnings=(*self.option_warnings(), *self.without_effect()),
        )

    def no_answer(self, model: str, reason: str, load_ms: float) -> Json:
        """Return the body for a load or unload without an answer."""
        return self.ENCODER(Head(model, iso(time()), load_ms)).no_answer(reason)

    def _variables(self) -> Json:
        """Return template variables; without `think` the template decides."""
        match self.think:
            case None:
                return {}
            case bool():
                return {"enable_thinking": self.think}
            case effort:
                return {"enable_thinking": True, "reasoning_effort": effort}

    def _encoder(self, stream: GenerationStream) -> Encoder:
        head = Head(
            stream.model,
            iso(stream.created),
            stream.load_ms,
            stream.served.token_bytes if self.logprobs else None,
            (*stream.warnings, *self._context_warnings(stream.served.context_length)),
        )
        return self.ENCODER(head)

    def _context_warnings(self, length: int) -> Sequence[Reason]:
        asked = self.given.num_ctx
        if asked is None or asked <= length:
            return ()
        return (Reason("ollama.num_ctx", {"asked": asked, "length": length}),)


class OllamaFunction(Body):
    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Body):
    """A tool; types other than `function` are left out with a warning."""

    type: ToolType = FUNCTION
    function: OllamaFunction | None = None


class OllamaChatRequest(Generating):
    """The body of POST /api/chat."""

    ENCODER = ChatEncoder

    messages: Listed[OllamaMessage] | None = None
    tools: Listed[OllamaTool] | None = None

    @property
    def empty(self) -> bool:
        return not self.messages

    def generation_request(self) -> GenerationRequest:
        request = super().generation_request()
        return replace(
            request,
            messages=rendered(self.messages or ()),
            tools=self._tools(),
            warnings=(*request.warnings, *self._skipped()),
        )

    def _tools(self) -> ToolUse | None:
        functions = []
        for at, tool in enumerate(self.tools or ()):
            if tool.type == FUNCTION and tool.function is None:
                raise field_error("request.missing", f"tools[{at}].function")
            if tool.type == FUNCTION and tool.function is not None:
                named = tool.function
                functions.append(tooling.function(named.name, named.description, named.parameters))
        return tooling.tool_use(functions)

    def _skipped(self) -> list[Reason]:
        tools = enumerate(self.tools or ())
        return [skipped(tool.type, f"tools[{at}]") for at, tool in tools if tool.type != FUNCTION]


class GenerateRequest(Generating):
    """The body of POST /api/generate.

    `raw` prompts and prompts with a `suffix` are continued verbatim; others become a conversation
    of one message.
    """

    ENCODER = CompletionEncoder

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: Listed[str] | None = None
    raw: bool | None = None

    @property
    def empty(self) -> bool:
        return not (self.prompt or self.suffix or self.images)

    def generation_request(self) -> GenerationRequest:
        request, prompt = super().generation_request(), self.prompt or ""
        if self.raw or self.suffix:
            for name in ("system", "images"):
                if getattr(self, name):
                    because = "raw" if self.raw else "suffix"
                    raise field_error("request.value", name, expected=f"null ({because})")
            return replace(request, prompts=(prompt,), suffix=self.suffix or "")
        messages: list[Json] = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        messages.append({"role": "user", "content": content(prompt, self.images, "user", "")})
        return replace(request, messages=messages)
