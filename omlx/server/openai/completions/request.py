"""OpenAI's text completions, inwards: a JSON body to a `GenerationRequest`."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from omlx.errors import BadRequest
from omlx.server import response_format
from omlx.server.dialect import OPENAI, Encoder
from omlx.server.fields import Listed, Sampled, Stops, StreamOptions, Text, bias, read, stops
from omlx.server.generation_request import GenerationRequest
from omlx.server.openai.completions.encoder import CompletionEncoder
from omlx.server.openai.head import Head
from omlx.server.responder import Exchange
from omlx.server.stream import GenerationStream

MAX_TOKENS: Final = 16
"""What this API generates where nobody says how much."""
MAX_CHOICES: Final = 128

# Fields that are not supported, each with the values that ask for nothing.
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "prompt_logprobs": (),
}

Ids: TypeAlias = Annotated[Listed[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Given: TypeAlias = (
    Text
    | Annotated[Listed[Text], Field(min_length=1)]
    | Ids
    | Annotated[Listed[Ids], Field(min_length=1)]
)
"""One text or several, each as it is or as token ids."""


class CompletionRequest(Sampled):
    """The body of POST /v1/completions."""

    prompt: Given
    suffix: str | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Text | Stops | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    response_format: dict[str, Any] | None = None

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        return apart(self.prompt)

    def exchange(self) -> Exchange:
        return Exchange(
            self.generation_request(), bool(self.stream), "cmpl-", self._encoder, OPENAI
        )

    def generation_request(self) -> GenerationRequest:
        """The same, free of this dialect. Raises BadRequest for what one field cannot know of another."""
        self.refuse(UNSUPPORTED)
        prompts = self.prompts
        if (count := len(prompts) * (self.n or 1)) > MAX_CHOICES:
            raise BadRequest(
                "request.too_many", param="prompt", field="prompt", count=count, limit=MAX_CHOICES
            )
        if self.suffix and not all(isinstance(prompt, str) for prompt in prompts):
            raise BadRequest("request.suffix_ids", param="suffix")
        return GenerationRequest(
            prompts=prompts,
            suffix=self.suffix or "",
            model=self.model,
            draft_model=self.draft_model,
            sampling=self.sampling,
            logit_bias=bias(self.logit_bias),
            seed=self.seed,
            n=self.n or 1,
            max_tokens=MAX_TOKENS if self.max_tokens is None else max(1, self.max_tokens),
            stop_strings=stops(self.stop),
            top_logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
            speculation=self.strategy,
            draft_length=self.draft_length,
            structured_output=response_format.wanted(
                self.response_format, "response_format", self.model_extra
            ),
        )

    def _encoder(self, stream: GenerationStream) -> Encoder:
        return CompletionEncoder(
            Head.of(stream, logprobs=self.logprobs is not None),
            self.n or 1,
            [self._echoed(prompt, stream) for prompt in self.prompts],
            first_tokens=stream.first_tokens if self.echo and self.logprobs is not None else (),
            silent=self.max_tokens == 0,
            include_usage=bool(self.stream_options and self.stream_options.include_usage),
        )

    def _echoed(self, prompt: str | tuple[int, ...], stream: GenerationStream) -> str:
        if not self.echo:
            return ""
        return (
            prompt if isinstance(prompt, str) else str(stream.served.tokenizer.decode(list(prompt)))
        )


def apart(given: Given) -> tuple[str | tuple[int, ...], ...]:
    """A list of numbers is one text, any other list is several."""
    if isinstance(given, str):
        return (given,)
    if ids := tuple(each for each in given if isinstance(each, int)):
        return (ids,)
    return tuple(
        each if isinstance(each, str) else tuple(each)
        for each in given
        if not isinstance(each, int)
    )


def parse(body: bytes) -> CompletionRequest:
    """Raises BadRequest, naming the field, for anything that is not such a request."""
    return read(CompletionRequest, body)
