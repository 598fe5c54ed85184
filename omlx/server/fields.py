"""Fields that the bodies of several dialects share, as pydantic models. Wrong types are refused, unknown names kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from omlx.draft_length import MAX_DRAFT_LENGTH, DraftLength
from omlx.engine import strategy
from omlx.errors import BadRequest
from omlx.server import errors
from omlx.server.generation_request import sampling_fields

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

Text = Annotated[str, Field(min_length=1)]
Listed: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
"""Looked at up to the first item that is wrong: a body has room for millions of them."""
Stops = Annotated[list[Text], Field(max_length=64)]
"""Every one of them is looked for behind every token."""
Choice = Literal["none", "auto", "required"]
"""What `tool_choice` is where it names no tool."""
IMAGES: Final = frozenset(
    {"image", "image_url", "input_image", "input_audio", "input_video", "video_url", "audio_url"}
)


class Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class ContentPart(Body):
    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str | None:
        return self.refusal if self.type == "refusal" else self.text


class StreamOptions(Body):
    include_usage: bool | None = None


class Sampled(Body):
    """What every body that generates may have beside its own."""

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    user: str | None = None
    speculation: str | None = None
    draft_model: Text | None = None
    num_draft_tokens: Annotated[int, Field(ge=0, le=MAX_DRAFT_LENGTH)] | None = None
    draft_min: Annotated[int, Field(ge=1, le=MAX_DRAFT_LENGTH)] | None = None
    draft_max: Annotated[int, Field(ge=1, le=MAX_DRAFT_LENGTH)] | None = None

    @property
    def sampling(self) -> dict[str, float]:
        return sampling_fields(self)

    @property
    def strategy(self) -> strategy.Strategy | None:
        """Raises BadRequest for one that contradicts the draft that is named."""
        if self.speculation is None:
            return None
        asked = strategy.parse(self.speculation)
        if self.draft_model is not None and asked.step("draft") is None:
            raise BadRequest("request.draft_off", param="draft_model", draft=self.draft_model)
        return asked

    @property
    def draft_length(self) -> DraftLength:
        """Raises BadRequest for bounds that contradict each other."""
        bounds = DraftLength.parse(vars(self))
        if (contradiction := bounds.contradiction) is not None:
            pair = contradiction._asdict()
            raise BadRequest("request.draft_bounds", param=contradiction.low, **pair)
        return bounds

    def refuse(self, unsupported: Mapping[str, Sequence[object]]) -> None:
        """Raise BadRequest for a field that is named here and asks for something; the values beside it do not."""
        for name, value in (self.model_extra or {}).items():
            if name in unsupported and value is not None and value not in unsupported[name]:
                raise BadRequest("request.unsupported", param=name, field=name)


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def bias(given: Mapping[str, float] | None) -> dict[int, float]:
    """Raises BadRequest for keys that are no token ids."""
    try:
        return {int(token): bias for token, bias in (given or {}).items()}
    except ValueError as error:
        raise BadRequest(
            "request.type", param="logit_bias", field="logit_bias", detail="keys must be token ids"
        ) from error


def joined(content: str | list[ContentPart], field: str, types: Sequence[str]) -> str:
    """The text of parts. Raises BadRequest for parts that are not texts; pictures are refused in plain words."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        at = f"{field}[{i}]"
        if part.type in IMAGES:
            raise BadRequest("request.media", param=at, field=at, type=part.type)
        if part.type not in types or part.words is None:
            raise BadRequest("request.content", param=at, field=at, type=part.type)
    return "".join(part.words or "" for part in content)


def read(kind: type[B], body: bytes) -> B:
    """Raises BadRequest, naming the field, for anything that is not such a body."""
    try:
        found = kind.model_validate_json(body)
    except ValidationError as error:
        raise errors.from_validation(error) from error
    try:  # pydantic lets NaN and Infinity pass where anything may stand; an answer that repeats them would be no JSON
        json.dumps(from_json(body), allow_nan=False)
    except ValueError as error:
        raise BadRequest("request.json", detail=str(error)) from error
    return found


def read_query(kind: type[B], query: Mapping[str, str]) -> B:
    """Raises BadRequest, naming the parameter."""
    try:
        return kind.model_validate_strings(dict(query))
    except ValidationError as error:
        raise errors.from_validation(error) from error
