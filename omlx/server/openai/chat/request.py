"""The OpenAI chat dialect, inwards: a JSON body to a `GenerationRequest`.

A field that is not listed here and would change what the answer means is refused by name; any other unknown field is
ignored, as clients send many that are meant for somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from omlx.errors import BadRequest
from omlx.server import response_format, tooling
from omlx.server.dialect import OPENAI, Encoder, Json
from omlx.server.fields import (
    Body,
    Choice,
    ContentPart,
    Listed,
    Sampled,
    Stops,
    StreamOptions,
    Text,
    bias,
    joined,
    read,
    stops,
)
from omlx.server.generation_request import GenerationRequest
from omlx.server.openai.chat.encoder import ChatEncoder
from omlx.server.openai.head import Head
from omlx.server.responder import Exchange
from omlx.server.stream import GenerationStream
from omlx.text.tools import ToolUse

# Fields that are not supported, each with the values that ask for nothing.
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "best_of": (1,),
    "echo": (False,),
    "prompt_logprobs": (),
}
NO_THINKING: Final = "none"
"""The `reasoning_effort` that switches reasoning off."""


class CalledFunction(Body):
    name: Text
    arguments: str


class ToolCall(Body):
    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


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

    def rendered(self, at: int) -> Json:
        """The message as templates know it: `content` is one text, `developer` is what they call `system`."""
        if self.role == "function" or (self.tool_calls and self.role != "assistant"):
            raise BadRequest(
                "request.unsupported",
                param=f"messages[{at}]",
                field=f"messages[{at}] (function calls)",
            )
        if self.role == "tool" and self.tool_call_id is None:
            field = f"messages[{at}].tool_call_id"
            raise BadRequest("request.missing", param=field, field=field)
        message: Json = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self._text(at),
        }
        calls = [
            tooling.call(call.id, call.function.name, call.function.arguments)
            for call in self.tool_calls or ()
        ]
        optional = {
            "name": self.name,
            "reasoning_content": self.reasoning_content
            if self.reasoning_content is not None
            else self.reasoning,
            "tool_calls": calls or None,
            "tool_call_id": self.tool_call_id,
        }
        return message | {key: value for key, value in optional.items() if value is not None}

    def _text(self, at: int) -> str:
        if self.content is None and self.role != "assistant":
            raise BadRequest(
                "request.missing", param=f"messages[{at}].content", field=f"messages[{at}].content"
            )
        text = joined(
            self.content or "", f"messages[{at}].content", ("text", "input_text", "refusal")
        )
        return text + (self.refusal or "") if self.role == "assistant" else text


class Function(Body):
    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: Text


class NamedChoice(Body):
    type: Literal["function"]
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
        return joined(self.content, "prediction.content", ("text",))


class ChatRequest(Sampled):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[Listed[ChatMessage], Field(min_length=1)]
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Text | Stops | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Listed[Tool] | None = None
    tool_choice: Choice | NamedChoice | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    prediction: Prediction | None = None

    def exchange(self) -> Exchange:
        return Exchange(
            self.generation_request(), bool(self.stream), "chatcmpl-", self._encoder, OPENAI
        )

    def generation_request(self) -> GenerationRequest:
        """The same, free of this dialect. Raises BadRequest for what one field cannot know of another."""
        self.refuse(UNSUPPORTED)
        tooling.check_count(self.messages, "messages")
        return GenerationRequest(
            messages=tooling.with_names(
                [message.rendered(at) for at, message in enumerate(self.messages)]
            ),
            model=self.model,
            draft_model=self.draft_model,
            template_variables=variables(self.reasoning_effort, self.chat_template_kwargs),
            tools=self._tools(),
            continue_last=self._continues,
            sampling=self.sampling,
            logit_bias=bias(self.logit_bias),
            seed=self.seed,
            n=self.n or 1,
            max_tokens=self.max_tokens
            if self.max_completion_tokens is None
            else self.max_completion_tokens,
            stop_strings=stops(self.stop),
            top_logprobs=self._top_logprobs(),
            speculation=self.strategy,
            draft_length=self.draft_length,
            prediction=self.prediction.text if self.prediction is not None else "",
            structured_output=response_format.wanted(
                self.response_format, "response_format", self.model_extra
            ),
        )

    @property
    def _continues(self) -> bool:
        """Whether the last message is to be completed, in any of the ways in which servers let clients say so."""
        last = self.messages[-1]
        begun = self.add_generation_prompt is False and last.role == "assistant"
        return bool(self.continue_final_message or last.prefix or begun)

    def _encoder(self, stream: GenerationStream) -> Encoder:
        head = Head.of(stream, logprobs=bool(self.logprobs))
        return ChatEncoder(
            head,
            stream.n,
            include_usage=bool(self.stream_options and self.stream_options.include_usage),
        )

    def _tools(self) -> ToolUse | None:
        functions = [
            tooling.function(
                tool.function.name, tool.function.description, tool.function.parameters
            )
            for tool in self.tools or ()
        ]
        choice = self.tool_choice
        named = choice.function.name if isinstance(choice, NamedChoice) else None
        allowed = choice.allowed_tools if isinstance(choice, AllowedChoice) else None
        return tooling.tool_use(
            functions,
            none=choice == "none",
            forced=named is not None or (choice if allowed is None else allowed.mode) == "required",
            name=named,
            allowed=None if allowed is None else [each.function.name for each in allowed.tools],
            single=self.parallel_tool_calls is False,
            strict=(tool.function.name for tool in self.tools or () if tool.function.strict),
        )

    def _top_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("request.top_logprobs", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


def variables(effort: str | None, own: Mapping[str, Any] | None) -> Json:
    """What the template may read. A client's own variables win over what its other fields mean."""
    meant: Json = {} if effort is None else {"reasoning_effort": effort}
    if effort == NO_THINKING:
        meant = {"enable_thinking": False}
    return meant | dict(own or {})


def parse(body: bytes) -> ChatRequest:
    """Raises BadRequest, naming the field, for anything that is not such a request."""
    return read(ChatRequest, body)
