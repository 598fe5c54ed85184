"""The OpenAI chat dialect, inwards: a JSON body to a `GenerationRequest`.

A field that is not listed here and would change what the answer means is refused by name; any other unknown field is
ignored, as clients send many that are meant for somebody else.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omlx.engine.spec import strategy
from omlx.errors import BadRequest
from omlx.server import errors
from omlx.server.generation import SAMPLING, GenerationRequest, WindowWish

# Fields that are not supported yet, each with the values that ask for nothing.
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "grammar": ("",),
    "json_schema": (),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "best_of": (1,),
    "echo": (False,),
    "prompt_logprobs": (),
}

Text = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class ContentPart(_Body):
    type: str
    text: str | None = None


class ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None

    def rendered(self, at: int) -> dict[str, Any]:
        """The message as templates know it: `content` is one text, `developer` is what they call `system`."""
        if self.role in ("tool", "function") or (self.model_extra or {}).get("tool_calls"):
            raise BadRequest("request.unsupported", param=f"messages[{at}]", field=f"messages[{at}] (tool calls)")
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self._text(at),
        }
        optional = {"name": self.name, "reasoning_content": self.reasoning_content}
        return message | {key: value for key, value in optional.items() if value is not None}

    def _text(self, at: int) -> str:
        if self.content is None and self.role != "assistant":
            raise BadRequest("request.missing", param=f"messages[{at}].content", field=f"messages[{at}].content")
        return _text(self.content or "", f"messages[{at}].content", ("text", "input_text", "refusal"))


class Prediction(_Body):
    """A text that the answer is expected to resemble."""

    type: Literal["content"]
    content: str | list[ContentPart]

    @property
    def text(self) -> str:
        return _text(self.content, "prediction.content", ("text",))


class StreamOptions(_Body):
    include_usage: bool | None = None


class ChatRequest(_Body):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=64)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    user: str | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    speculation: str | None = None
    draft_model: Text | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = None
    draft_min: Annotated[int, Field(ge=1, le=64)] | None = None
    draft_max: Annotated[int, Field(ge=1, le=64)] | None = None
    prediction: Prediction | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def neutral(self) -> GenerationRequest:
        """The same, free of this dialect. Raises BadRequest for what one field cannot know of another."""
        self._refuse_unsupported()
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        given = {name: getattr(self, name) for name in SAMPLING}
        return GenerationRequest(
            messages=[message.rendered(at) for at, message in enumerate(self.messages)],
            model=self.model,
            draft_model=self.draft_model,
            template_variables=variables,
            continue_last=bool(self.continue_final_message),
            sampling={name: value for name, value in given.items() if value is not None},
            logit_bias=self._bias(),
            seed=self.seed,
            n=self.n or 1,
            max_tokens=self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens,
            stops=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            top_logprobs=self._top_logprobs(),
            speculation=self._strategy(),
            window=self._window(),
            prediction=self.prediction.text if self.prediction is not None else "",
        )

    def _refuse_unsupported(self) -> None:
        for name, value in (self.model_extra or {}).items():
            if name in UNSUPPORTED and value is not None and value not in UNSUPPORTED[name]:
                raise BadRequest("request.unsupported", param=name, field=name)

    def _bias(self) -> dict[int, float]:
        try:
            return {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        except ValueError as error:
            raise BadRequest(
                "request.type", param="logit_bias", field="logit_bias", detail="keys must be token ids"
            ) from error

    def _top_logprobs(self) -> int | None:
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("request.top_logprobs", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def _strategy(self) -> strategy.Strategy | None:
        if self.speculation is None:
            return None
        asked = strategy.parse(self.speculation)
        if self.draft_model is not None and asked.step("draft") is None:
            raise BadRequest("request.draft_off", param="draft_model", draft=self.draft_model)
        return asked

    def _window(self) -> WindowWish:
        """Raises BadRequest for lengths that contradict each other."""
        wish = WindowWish(self.num_draft_tokens, self.draft_min, self.draft_max)
        if (found := wish.contradiction) is not None:
            low, smaller, high, larger = found
            raise BadRequest("request.draft_bounds", param=low, low=low, smaller=smaller, high=high, larger=larger)
        return wish


def _text(content: str | list[ContentPart], field: str, types: tuple[str, ...]) -> str:
    """The text of parts, all of which must be texts."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type not in types or part.text is None:
            at = f"{field}[{i}]"
            raise BadRequest("request.content", param=at, field=at, type=part.type)
    return "".join(part.text or "" for part in content)


def parse(body: bytes) -> ChatRequest:
    """Raises BadRequest, naming the field, for anything that is not such a request."""
    try:
        return ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise errors.from_validation(error) from error
