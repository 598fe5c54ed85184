"""The Responses API, inwards: a JSON body to a `GenerationRequest`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from omlx.errors import BadRequest
from omlx.server import response_format, tooling
from omlx.server.dialect import Json
from omlx.server.fields import Body, Choice, Listed, Sampled, Text, read
from omlx.server.generation_request import GenerationRequest
from omlx.server.openai.chat.request import variables
from omlx.server.openai.head import Head
from omlx.server.openai.responses import tools as response_tools
from omlx.server.openai.responses.encoder import ResponseEncoder
from omlx.server.openai.responses.items import Conversation, Item
from omlx.server.openai.responses.tools import Called, Tool
from omlx.server.stream import GenerationStream
from omlx.text.tools import ToolUse

# Fields that are not supported, each with the values that ask for nothing.
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "conversation": (),
    "prompt": (),
    "moderation": (),
}
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"


class Named(Body):
    type: Literal["function", "custom"]
    name: Text
    namespace: Text | None = None

    @property
    def told(self) -> str:
        return Called(self.name, self.namespace).told


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Listed[Named]


class Reasoning(Body):
    effort: str | None = None
    summary: str | None = None


class TextConfig(Body):
    format: dict[str, Any] | None = None


class ResponseRequest(Sampled):
    """The body of POST /v1/responses."""

    input: str | Listed[Item] | None = None
    instructions: str | None = None
    previous_response_id: Text | None = None
    store: bool | None = None
    background: bool | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Listed[Tool] | None = None
    tool_choice: Choice | Named | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    include: Listed[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def items(self) -> list[Item]:
        return (
            [Item(role="user", content=self.input)]
            if isinstance(self.input, str)
            else self.input or []
        )

    def conversation(self, before: Sequence[Json]) -> list[Json]:
        """What was said so far, without the instructions. Raises BadRequest."""
        found = Conversation(before)
        items = self.items
        tooling.check_count(items, "input")
        for at, item in enumerate(items):
            found.add(item, f"input[{at}]")
        if not found.messages:
            raise BadRequest(
                "request.empty", param="input", field="input", detail="there is nothing to answer"
            )
        return found.messages

    def generation_request(self, conversation: Sequence[Json]) -> GenerationRequest:
        """The same, free of this dialect. Raises BadRequest for what one field cannot know of another."""
        self.refuse(UNSUPPORTED)
        if self.background and self.stream:
            raise BadRequest("request.background_stream", param="background")
        if self.background and not self.stored:
            raise BadRequest("request.background_store", param="background")
        return GenerationRequest(
            messages=tooling.with_names(_instructed(self.instructions, conversation)),
            model=self.model,
            draft_model=self.draft_model,
            template_variables=variables(
                self.reasoning.effort if self.reasoning else None, self.chat_template_kwargs
            ),
            tools=self._tools(),
            sampling=self.sampling,
            seed=self.seed,
            max_tokens=self.max_output_tokens,
            top_logprobs=(self.top_logprobs or 0) if self._logprobs else None,
            speculation=self.strategy,
            draft_length=self.draft_length,
            structured_output=response_format.structured_output(
                self.text.format if self.text else None, "text.format"
            ),
        )

    def encoder(self, stream: GenerationStream) -> ResponseEncoder:
        tools = response_tools.by_told_name(self.tools or ())
        encrypted = ENCRYPTED in (self.include or ())
        head = Head.of(stream, logprobs=self._logprobs)
        return ResponseEncoder(head, self._echo(), tools=tools, encrypted=encrypted)

    @property
    def _logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def _echo(self) -> Json:
        """What a response repeats of its request."""
        told = self.model_dump(
            exclude_none=True, include={"tools", "reasoning", "text", "tool_choice"}
        )
        return {
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
            "background": bool(self.background),
            "store": self.stored,
            "max_output_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "tools": told.get("tools", []),
            "tool_choice": told.get("tool_choice", "auto"),
            "reasoning": {"effort": None, "summary": None} | told.get("reasoning", {}),
            "text": {"format": {"type": "text"}} | told.get("text", {}),
            "truncation": "disabled",
            "metadata": self.metadata or {},
            "user": self.user,
        }

    def _tools(self) -> ToolUse | None:
        choice = self.tool_choice
        named = choice.told if isinstance(choice, Named) else None
        allowed = choice if isinstance(choice, AllowedTools) else None
        return tooling.tool_use(
            response_tools.functions(self.tools or ()),
            none=choice == "none",
            forced=named is not None or (choice if allowed is None else allowed.mode) == "required",
            name=named,
            allowed=None if allowed is None else [each.told for each in allowed.tools],
            single=self.parallel_tool_calls is False,
            strict=response_tools.strict(self.tools or ()),
        )


def _instructed(instructions: str | None, conversation: Sequence[Json]) -> list[Json]:
    """Instructions and the developer's first words are one message: few templates take two."""
    if not instructions:
        return list(conversation)
    first, rest = conversation[0], conversation[1:]
    if first["role"] == "system":
        return [{"role": "system", "content": f"{instructions}\n\n{first['content']}"}, *rest]
    return [{"role": "system", "content": instructions}, *conversation]


def parse(body: bytes) -> ResponseRequest:
    """Raises BadRequest, naming the field, for anything that is not such a request."""
    return read(ResponseRequest, body)
