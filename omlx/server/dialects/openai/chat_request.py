"""OpenAI's chat completions: a JSON body to a `GenerationRequest`.

Fields in UNSUPPORTED would change the meaning of the answer and are refused by name. Other unknown
fields are ignored: clients send many that are meant for other servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from omlx.errors import BadRequest, Reason
from omlx.server.dialects.openai.choices_encoder import ChatEncoder, Head
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.request import tooling
from omlx.server.request.content import ContentPart, ContentReader, join_thinking
from omlx.server.request.dialect import OPENAI, Encoder, Exchange
from omlx.server.request.fields import (
    FUNCTION,
    Body,
    Choice,
    Lengths,
    Listed,
    Stops,
    StreamOptions,
    Templated,
    Text,
    ToolType,
    bias,
    includes_usage,
    limit,
    stops,
)
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import GenerationStream
from omlx.server.request.structured_output import structured_output
from omlx.server.request.tooling import skipped
from omlx.text.tools import ToolUse

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "prompt_logprobs": (),
}
"""Unsupported fields, each with the values that request nothing."""
NO_THINKING: Final = "none"
"""Value of `reasoning_effort` that switches reasoning off."""


class CalledFunction(Body):
    name: Text
    arguments: str | dict[str, Any] | None = None


class CustomCall(Body):
    name: Text
    input: str | None = None


class ToolCall(Body):
    id: str | None = None
    type: ToolType = FUNCTION
    function: CalledFunction | None = None
    custom: CustomCall | None = None

    def rendered(self, at: str) -> Json:
        """Return the call as templates expect it. Raises BadRequest for a call without a tool."""
        if self.function is not None:
            called, arguments = self.function.name, self.function.arguments or {}
        elif self.custom is not None:
            called, arguments = self.custom.name, {"input": self.custom.input or ""}
        else:
            raise field_error("request.missing", f"{at}.function")
        return tooling.call(self.id or "", called, arguments)


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Listed[ContentPart] | None = None
    refusal: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Listed[ToolCall] | None = None
    tool_call_id: str | None = None
    prefix: bool | None = None

    def rendered(self, at: int, reading: ContentReader) -> Json:
        """Return message number `at` as templates expect it.

        `content` becomes a text, or parts if there are images; `developer` becomes `system`.
        `reading` notes omissions. Raises BadRequest for messages that no template can render.
        """
        field = f"messages[{at}]"
        if self.role == "function" or (self.tool_calls and self.role != "assistant"):
            raise BadRequest("request.unsupported", param=field, field=f"{field} (function calls)")
        message: Json = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self._content(f"{field}.content", reading),
        }
        calls = [
            call.rendered(f"{field}.tool_calls[{i}]")
            for i, call in enumerate(self.tool_calls or ())
        ]
        reasoning = self.reasoning if self.reasoning_content is None else self.reasoning_content
        if reasoning is None and self.role == "assistant":
            reasoning = join_thinking(self.content) or None
        optional = {
            "name": self.name,
            "reasoning_content": reasoning,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
        }
        return message | {key: value for key, value in optional.items() if value is not None}

    def _content(self, field: str, reading: ContentReader) -> str | list[Json]:
        """Return a text, or parts with images and files for the roles user and tool."""
        if self.content is None and self.role not in ("assistant", "tool"):
            raise field_error("request.missing", field)
        if self.role in ("user", "tool"):
            return reading.join_parts(self.content or "", field, result=self.role == "tool")
        answered = self.role == "assistant"
        text = reading.join_texts(self.content or "", field, answered=answered)
        if answered:
            text += self.refusal or ""
        return text


class Function(Body):
    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool; types other than `function` are left out with a warning."""

    type: ToolType = FUNCTION
    function: Function | None = None


class NamedFunction(Body):
    name: Text


class NamedChoice(Body):
    type: Literal["function"] = "function"
    function: NamedFunction


class Allowed(Body):
    mode: Literal["auto", "required"]
    tools: Listed[NamedChoice]


class AllowedChoice(Body):
    type: Literal["allowed_tools"]
    allowed_tools: Allowed


class Prediction(Body):
    """A text that the answer is expected to resemble."""

    type: Literal["content"]
    content: str | Listed[ContentPart]

    @property
    def text(self) -> str:
        return ContentReader().join_texts(self.content, "prediction.content")


class ChatRequest(Templated, Lengths):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[Listed[ChatMessage], Field(min_length=1)]
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | Stops | None = None
    max_completion_tokens: int | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Listed[Tool] | None = None
    tool_choice: Choice | NamedChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    prediction: Prediction | None = None

    def exchange(self) -> Exchange:
        return Exchange(
            self.generation_request(), bool(self.stream), "chatcmpl-", self._encoder, OPENAI
        )

    def generation_request(self) -> GenerationRequest:
        """Return the request in no dialect. Raises BadRequest for contradictory fields."""
        self.refuse(UNSUPPORTED)
        reading = ContentReader()
        rendered = [message.rendered(at, reading) for at, message in enumerate(self.messages)]
        messages = _identified(rendered)
        max_tokens = self.answer_limit(self._max_tokens())
        request = GenerationRequest(
            messages=tooling.with_names(messages),
            template_variables=variables(self.reasoning_effort, self.chat_template_kwargs),
            tools=self._tools(),
            continue_last=self._continues,
            logit_bias=bias(self.logit_bias),
            n=self.n or 1,
            max_tokens=max_tokens,
            prewarm=self.prewarms,
            min_tokens=self.check_min(max_tokens),
            ignore_eos=bool(self.ignore_eos),
            thinking_budget=self.budget(implied_budget(self.reasoning_effort)),
            stop_strings=stops(self.stop),
            top_logprobs=self._top_logprobs(),
            prediction=self.prediction.text if self.prediction is not None else "",
            structured_output=structured_output(
                self.response_format, "response_format", self.model_extra
            ),
            warnings=(*self._skipped(), *reading.warnings, *self.without_effect()),
        )
        return self.filled(request)

    def _max_tokens(self) -> int | None:
        if self.max_completion_tokens is not None:
            return limit(self.max_completion_tokens, "max_completion_tokens")
        return limit(self.max_tokens, "max_tokens")

    @property
    def _continues(self) -> bool:
        """Whether the answer completes the last message, in any server's way to request that."""
        if self.continue_final_message and self.add_generation_prompt:
            expected = "false (add_generation_prompt = true)"
            raise field_error("request.value", "continue_final_message", expected=expected)
        last = self.messages[-1]
        no_prompt = self.add_generation_prompt is False and last.role == "assistant"
        return bool(self.continue_final_message or last.prefix or no_prompt)

    def _encoder(self, stream: GenerationStream) -> Encoder:
        head = Head.of(stream, logprobs=bool(self.logprobs), tier=self.used_tier)
        return ChatEncoder(head, stream.n, include_usage=includes_usage(self.stream_options))

    def _skipped(self) -> list[Reason]:
        tools = enumerate(self.tools or ())
        return [skipped(tool.type, f"tools[{at}]") for at, tool in tools if tool.type != FUNCTION]

    def _tools(self) -> ToolUse | None:
        functions: list[Function] = []
        for at, tool in enumerate(self.tools or ()):
            if tool.type != FUNCTION:
                continue
            if tool.function is None:
                raise field_error("request.missing", f"tools[{at}].function")
            functions.append(tool.function)
        name = allowed = None
        mode: str | None = None
        match self.tool_choice:
            case NamedChoice(function=function):
                name = function.name
            case AllowedChoice(allowed_tools=given):
                mode, allowed = given.mode, [tool.function.name for tool in given.tools]
            case choice:
                mode = choice
        return tooling.tool_use(
            [tooling.function(each.name, each.description, each.parameters) for each in functions],
            mode,
            name=name,
            allowed=allowed,
            single=self.parallel_tool_calls is False,
            strict=(function.name for function in functions if function.strict),
        )

    def _top_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("request.top_logprobs", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


def _identified(messages: list[Json]) -> list[Json]:
    """Give an id to calls without any; results without an id answer the first open call.

    Raises BadRequest for a result without an id and without an open call.
    """
    waiting: list[str] = []
    for at, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = call["id"] or f"call_{at}_{number}"
            waiting.append(call["id"])
        if message["role"] != "tool":
            continue
        answered = message.get("tool_call_id") or next(iter(waiting), None)
        if answered is None:
            raise field_error("request.missing", f"messages[{at}].tool_call_id")
        message["tool_call_id"] = answered
        if answered in waiting:
            waiting.remove(answered)
    return messages


def variables(effort: str | None, own: Mapping[str, Any] | None) -> Json:
    """Return template variables; a client's `own` win over those of `effort`."""
    implied: Json = {} if effort is None else {"reasoning_effort": effort}
    if effort == NO_THINKING:
        implied = {"enable_thinking": False}
    return implied | dict(own or {})


def implied_budget(effort: str | None) -> int | None:
    """Return the thinking budget of a `reasoning_effort`; its levels are up to the template."""
    return 0 if effort == NO_THINKING else None
