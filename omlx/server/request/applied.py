"""Settings in effect for a request, each with the source of the value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from omlx.engine.types import Request
from omlx.models.catalog.catalog import Profile
from omlx.models.pool.served import ServedModel
from omlx.records import AppliedSetting
from omlx.server.request.generation_request import SAMPLING, GenerationRequest
from omlx.settings.layers import Source

REQUEST: Final = "request"
MODEL_FILES: Final = "model_files"
"""Sources that are no layer of settings: the request's own fields, generation_config.json."""


def applied_settings(
    sent: GenerationRequest, profile: Profile | None, served: ServedModel, request: Request
) -> tuple[AppliedSetting, ...]:
    """Return the settings of an engine's request, with the first source that sets each.

    `sent`: as the client sent it, before `profile` and settings were filled in.
    """
    return tuple(
        AppliedSetting(name, value, _source(name, sent, profile, served))
        for name, value in _values(sent, served, request)
    )


def _values(
    sent: GenerationRequest, served: ServedModel, request: Request
) -> Iterator[tuple[str, str]]:
    for name in SAMPLING:
        yield name, f"{getattr(request.sampling, name):g}"
    yield "seed", str(request.sampling.seed)
    if request.max_tokens is not None:
        yield "max_tokens", str(request.max_tokens)
    budget = sent.thinking_budget
    if budget is None:
        budget = served.speculation.settings.thinking_budget
    if budget is not None:
        yield "thinking_budget", str(budget)
    yield "speculation", str(request.speculation.strategy)
    if served.draft is not None:
        yield "draft_model", served.draft


def _source(
    name: str, sent: GenerationRequest, profile: Profile | None, served: ServedModel
) -> str:
    if name in sent.sampling or getattr(sent, name, None) is not None:
        return REQUEST
    if profile is not None and name in profile.values:
        return Source.PROFILE
    source = served.speculation.sources.get(name, Source.BUILT_IN)
    if source is Source.BUILT_IN and name in served.sampling:
        return MODEL_FILES
    return source
