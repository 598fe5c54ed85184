"""OpenAI's text completions: a JSON body to a `GenerationRequest`."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from omlx.errors import BadRequest
from omlx.server.dialects.openai.choices_encoder import CompletionEncoder, Head
from omlx.server.http.errors import field_error
from omlx.server.request.dialect import OPENAI, Encoder, Exchange
from omlx.server.request.fields import (
    Lengths,
    Listed,
    Sampled,
    Stops,
    StreamOptions,
    Text,
    bias,
    includes_usage,
    limit,
    stops,
)
from omlx.server.request.generation_request import DialectDefaults, GenerationRequest
from omlx.server.request.stream import GenerationStream
from omlx.server.request.structured_output import structured_output

MAX_TOKENS: Final = 16
"""Tokens — the default of this API."""
MAX_CHOICES: Final = 128

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "prompt_logprobs": (),
}
"""Unsupported fields, each with the values that request nothing."""

Ids: TypeAlias = Annotated[Listed[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Given: TypeAlias = (
    Text
    | Annotated[Listed[Text], Field(min_length=1)]
    | Ids
    | Annotated[Listed[Ids], Field(min_length=1)]
)
"""A prompt or a list of prompts, each as text or as token ids."""


class CompletionRequest(Sampled, Lengths):
    """The body of POST /v1/completions."""

    prompt: Given
    suffix: str | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: str | Stops | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    response_format: dict[str, Any] | None = None

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        return separate(self.prompt)

    def exchange(self) -> Exchange:
        return Exchange(
            self.generation_request(), bool(self.stream), "cmpl-", self._encoder, OPENAI
        )

    def generation_request(self) -> GenerationRequest:
        """Return the request in no dialect. Raises BadRequest for contradictory fields."""
        self.refuse(UNSUPPORTED)
        prompts = self.prompts
        if (count := len(prompts) * (self.n or 1)) > MAX_CHOICES:
            raise field_error("request.too_many", "prompt", count=count, limit=MAX_CHOICES)
        if self.suffix and not all(isinstance(prompt, str) for prompt in prompts):
            raise BadRequest("request.suffix_ids", param="suffix")
        defaults = DialectDefaults(MAX_TOKENS if self.max_tokens is None else None)
        max_tokens = limit(self.max_tokens, "max_tokens", least=0)
        request = GenerationRequest(
            prompts=prompts,
            suffix=self.suffix or "",
            logit_bias=bias(self.logit_bias),
            n=self.n or 1,
            max_tokens=max_tokens,
            defaults=defaults,
            min_tokens=self.check_min(defaults.max_tokens if max_tokens is None else max_tokens),
            ignore_eos=bool(self.ignore_eos),
            thinking_budget=self.thinking_budget,
            stop_strings=stops(self.stop),
            top_logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
            structured_output=structured_output(
                self.response_format, "response_format", self.model_extra
            ),
            warnings=self.without_effect(),
        )
        return self.filled(request)

    def _encoder(self, stream: GenerationStream) -> Encoder:
        return CompletionEncoder(
            Head.of(stream, logprobs=self.logprobs is not None),
            self.n or 1,
            [self._echoed(prompt, stream) for prompt in self.prompts],
            first_tokens=stream.first_tokens if self.echo and self.logprobs is not None else (),
            include_usage=includes_usage(self.stream_options),
        )

    def _echoed(self, prompt: str | tuple[int, ...], stream: GenerationStream) -> str:
        if not self.echo:
            return ""
        if isinstance(prompt, str):
            return prompt
        return str(stream.served.tokenizer.decode(list(prompt)))


def separate(given: Given) -> tuple[str | tuple[int, ...], ...]:
    """Return the separate prompts: a list of numbers is a single prompt, any other list is
    several.
    """
    if isinstance(given, str):
        return (given,)
    if ids := tuple(item for item in given if isinstance(item, int)):
        return (ids,)
    texts: list[str | tuple[int, ...]] = []
    for item in given:
        if isinstance(item, str):
            texts.append(item)
        elif not isinstance(item, int):
            texts.append(tuple(item))
    return tuple(texts)
