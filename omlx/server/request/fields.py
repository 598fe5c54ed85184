"""Fields that bodies of several dialects share, as pydantic models.

Wrong types are refused, unknown names kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from omlx.draft_length import MAX_DRAFT_LENGTH, DraftLength
from omlx.engine.speculation import strategy
from omlx.errors import BadRequest, Reason
from omlx.server.http import errors
from omlx.server.http.errors import from_validation
from omlx.server.http.transport import check_finite, outside_strings
from omlx.server.request.generation_request import (
    BUDGET,
    NO_LIMIT,
    TIERS,
    GenerationRequest,
    sampling_fields,
)

T = TypeVar("T")

Text = Annotated[str, Field(min_length=1)]
Listed: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
"""Validated up to the first invalid item: a body has room for millions of them."""
Stops = Annotated[list[str], Field(max_length=64)]
"""The limit bounds the work per token: each one is searched for after every token."""
Choice = Literal["none", "auto", "required", "any"]
"""A `tool_choice` that names no tool. `any` is Mistral's name for `required`."""
FUNCTION: Final = "function"
ToolType = Annotated[str, BeforeValidator(lambda given: FUNCTION if given is None else given)]
"""The type of a tool or call, with null for the default, as serializers write it."""

MAX_TIMEOUT_S: Final = 7 * 86400.0
_SHOWN: Final = 40
"""Characters of an unknown value in a warning."""
ANSWER_FIELDS: Final = {"background": (False,), "n": (1,), "min_tokens": (0,)}
"""Fields about an answer that must exist, each with the values that request nothing."""


class Body(BaseModel):
    """Body of a request: unknown fields are kept, wrong types refused."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read a body.

        Raises BadRequest, naming the field, for an invalid one, and for one with too many values.
        """
        outside = outside_strings(content)
        try:
            parsed = cls.model_validate_json(content)
        except ValidationError as error:
            raise from_validation(error) from error
        check_finite(outside)
        return parsed

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        """Read a query string. Raises BadRequest, naming the parameter, for an invalid one."""
        try:
            return cls.model_validate_strings(dict(query))
        except ValidationError as error:
            raise from_validation(error) from error


class StreamOptions(Body):
    include_usage: bool | None = None


def includes_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


class SamplingFields(Body):
    """Sampling and speculation."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    speculation: str | None = None
    draft_model: Text | None = None
    thinking_budget: Annotated[int, Field(ge=NO_LIMIT)] | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_LENGTH)] | None = None
    draft_min: Annotated[int, Field(ge=1, le=MAX_DRAFT_LENGTH)] | None = None
    draft_max: Annotated[int, Field(ge=1, le=MAX_DRAFT_LENGTH)] | None = None
    receipt: bool | None = None

    @property
    def sampling(self) -> dict[str, float]:
        """A `repetition_penalty` of 0 means 1: clients send it for a field that is off."""
        values = sampling_fields(self)
        if values.get("repetition_penalty") == 0:
            values["repetition_penalty"] = 1.0
        return values

    @property
    def strategy(self) -> strategy.Strategy | None:
        """Raises BadRequest for a strategy that excludes the draft model that the request names."""
        if self.speculation is None:
            return None
        requested = strategy.parse(self.speculation)
        kinds = ("draft", *strategy.TRAINED)  # of what `draft_model` names
        if self.draft_model is not None and not any(map(requested.clause, kinds)):
            raise BadRequest("request.draft_off", param="draft_model", draft=self.draft_model)
        return requested

    @property
    def draft_length(self) -> DraftLength:
        """Raises BadRequest for bounds that contradict each other."""
        bounds = DraftLength.parse(vars(self))
        if (contradiction := bounds.contradiction) is not None:
            pair = contradiction._asdict()
            raise BadRequest("request.draft_bounds", param=contradiction.low, **pair)
        return bounds


class Refusing(Body):
    """A body that refuses fields by name, and warns of others."""

    def refuse(self, unsupported: Mapping[str, Sequence[object]]) -> None:
        """Raise BadRequest for an unsupported field, unless its value requests nothing."""
        for name in requesting(self.model_extra or {}, unsupported):
            raise errors.field_error("request.unsupported", name)

    @property
    def extra_fields(self) -> Mapping[str, Any]:
        """Fields outside the model of the body."""
        return self.model_extra or {}

    def without_effect(self) -> tuple[Reason, ...]:
        """The warning about known fields that have no effect here, if there are any."""
        return without_effect(requesting(self.extra_fields, WITHOUT_EFFECT))


class Scheduled(Refusing):
    """When to generate, and for how long."""

    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    service_tier: str | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None

    @property
    def used_tier(self) -> str | None:
        """Service tier in use, where a request names a tier."""
        if self.service_tier in (None, "flex", "priority"):
            return self.service_tier
        return "default"

    @property
    def urgency(self) -> int | None:
        """Priority by the fields; None: as guessed."""
        if self.priority is not None:
            return self.priority
        return TIERS.get(self.service_tier or "auto")

    def without_effect(self) -> tuple[Reason, ...]:
        """Return warnings about known fields without effect, and about an unknown tier."""
        tier = self.service_tier
        if tier is None or tier in TIERS:
            return super().without_effect()
        return (*super().without_effect(), Reason("request.tier", {"tier": tier[:_SHOWN]}))


class Sampled(SamplingFields, Scheduled):
    """Fields of every body of OpenAI's and Anthropic's that generates."""

    model: str | None = None
    stream: bool | None = None
    user: str | None = None

    def filled(self, request: GenerationRequest) -> GenerationRequest:
        """Return a request with the fields that all these bodies share. Raises BadRequest."""
        return replace(
            request,
            model=self.model,
            draft_model=self.draft_model,
            sampling=self.sampling,
            seed=self.seed,
            speculation=self.strategy,
            draft_length=self.draft_length,
            receipt=self.receipt,
            priority=self.urgency,
            timeout_s=self.timeout,
        )


class CacheOptions(Body):
    """Options of the prefix cache. `prewarm`: only compute the prompt, for the cache."""

    prewarm: bool | None = None


class Templated(Sampled):
    """Fields of bodies whose messages a chat template renders."""

    chat_template_kwargs: dict[str, Any] | None = None
    prompt_cache_options: CacheOptions | None = None

    @property
    def prewarms(self) -> bool:
        return self.prompt_cache_options is not None and bool(self.prompt_cache_options.prewarm)

    def answer_limit(self, given: int | None) -> int | None:
        """The limit of tokens: `given`, but 0 where nothing is generated. Raises BadRequest for
        fields that request an answer nevertheless.
        """
        if not self.prewarms:
            return given
        for name in requesting({**vars(self), **(self.model_extra or {})}, ANSWER_FIELDS):
            raise errors.field_error("request.prewarm", name)
        return 0

    def budget(self, implied: int | None = None) -> int | None:
        """The thinking budget: the field's, else the template variable's, else the one that other
        fields imply. Raises BadRequest for a variable that is no budget.
        """
        own = self.chat_template_kwargs or {}
        if self.thinking_budget is not None:
            return self.thinking_budget
        if own.get(BUDGET) is not None:
            return _budget(own[BUDGET])
        if implied == 0 and "enable_thinking" in own:
            return None
        return implied


class Lengths(Body):
    """Fields of OpenAI's bodies about the length of an answer; -1 is no limit."""

    max_tokens: int | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None

    def check_min(self, max_tokens: int | None) -> int:
        """Return the least number of tokens. Raises BadRequest if it is above the most."""
        least = self.min_tokens or 0
        if max_tokens is not None and least > max_tokens:
            expected = f"≤ {max_tokens} (max_tokens)"
            raise errors.field_error("request.range", "min_tokens", expected=expected)
        return least


def _budget(value: object) -> int:
    field = f"chat_template_kwargs.{BUDGET}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise errors.field_error("request.type", field, expected="integer")
    if value < NO_LIMIT:
        raise errors.field_error("request.range", field, expected=f"≥ {NO_LIMIT}")
    return value


def limit(tokens: int | None, field: str, least: int = 1) -> int | None:
    """A limit of tokens; None for none. Raises BadRequest for one below `least` that is not -1."""
    if tokens is None or tokens == NO_LIMIT:
        return None
    if tokens < least:
        raise errors.field_error("request.range", field, expected=f"≥ {least} | = {NO_LIMIT}")
    return tokens


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings, without empty ones, which clients send for empty fields."""
    given = [stop] if isinstance(stop, str) else stop or []
    return tuple(filter(None, given))


def bias(given: Mapping[str, float] | None) -> dict[int, float]:
    """Raises BadRequest for keys that are no token ids."""
    try:
        return {int(token): bias for token, bias in (given or {}).items()}
    except ValueError as error:
        expected = "object[integer, number]"
        raise errors.field_error("request.type", "logit_bias", expected=expected) from error


_KEPT: Final = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
"""Value that Claude Code sends with every request: nothing is cleared."""
_BY_VALUES: Final[Sequence[tuple[Sequence[object], str]]] = (
    (
        (),
        """max_tool_calls web_search_options container add_special_tokens structural_tag
        thinking_token_budget truncate_prompt_tokens repeat_last_n enable_thinking random_seed""",
    ),
    (
        (False,),
        """background store shift early_stopping include_stop_str_in_output
        return_token_ids return_tokens_as_token_ids use_beam_search safe_prompt""",
    ),
    (
        (True,),
        """include_reasoning skip_special_tokens spaces_between_special_tokens
        parse_tool_calls""",
    ),
    (
        ([],),
        """mcp_servers allowed_token_ids bad_words documents logits_processors
        stop_token_ids lora samplers models plugins transforms""",
    ),
    (({},), "kv_transfer_params mm_processor_kwargs vllm_xargs provider reasoning"),
    (("",), "chat_template adapters"),
    ((0,), "dry_multiplier dynatemp_range mirostat n_keep n_probs t_max_predict_ms"),
    ((1,), "length_penalty repeat_penalty typical_p"),
    ((-1,), "id_slot n_predict top_n_sigma"),
    (([], {}, _KEPT), "context_management"),
    (("disabled",), "truncation"),
    (("medium",), "verbosity"),
    (("standard",), "speed"),
    (("auto", "deepseek"), "reasoning_format"),
    (({"type": "adaptive"},), "thinking"),
)
"""Values that request nothing, and the fields for which they do.

Of OpenAI, Anthropic, Ollama, vLLM, llama.cpp, mlx-lm, OpenRouter, Mistral, DeepSeek, DashScope."""
WITHOUT_EFFECT: Final[Mapping[str, Sequence[object]]] = {
    name: values for values, names in _BY_VALUES for name in names.split()
}


def requesting(given: Mapping[str, Any], idle: Mapping[str, Sequence[object]]) -> list[str]:
    """Return the names in `idle` whose values in `given` request something."""
    return [
        name
        for name, value in given.items()
        if name in idle and value is not None and value not in idle[name]
    ]


def without_effect(names: Sequence[str]) -> tuple[Reason, ...]:
    """Return the warning about fields without effect; empty without `names`."""
    if not names:
        return ()
    return (Reason("request.without_effect", {"fields": ", ".join(names), "count": len(names)}),)
