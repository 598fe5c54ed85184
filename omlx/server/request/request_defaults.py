"""What a request leaves open: filled in by the profile that it names, then by the settings."""

from __future__ import annotations

from dataclasses import replace

from omlx.engine.strategy import parse
from omlx.models.catalog.catalog import Profile
from omlx.server.request.fields import BUDGET, NO_LIMIT
from omlx.server.request.generation_request import GenerationRequest, sampling_fields
from omlx.settings.schema import Settings


def with_profile(request: GenerationRequest, profile: Profile | None) -> GenerationRequest:
    """Add the values of a profile, as if the request had sent them; those of the request win."""
    if profile is None:
        return request
    settings, variables = profile.settings, profile.settings.chat_template_kwargs or {}
    strategy, receipt = request.speculation, request.receipt
    if strategy is None and request.draft_model is None and "speculation" in profile.values:
        strategy = parse(settings.speculation)
    if receipt is None and "receipt" in profile.values:
        receipt = settings.receipt
    budget, max_tokens = request.thinking_budget, request.max_tokens
    if budget is None:
        budget = settings.thinking_budget
    if max_tokens is None:
        max_tokens = settings.max_tokens
    return replace(
        request,
        profile=profile.id,
        sampling={**sampling_fields(settings), **request.sampling},
        max_tokens=max_tokens,
        thinking_budget=budget,
        template_variables={**variables, **request.template_variables},
        speculation=strategy,
        draft_length=request.draft_length.over(profile.draft_length),
        receipt=receipt,
    )


def with_settings(request: GenerationRequest, settings: Settings) -> GenerationRequest:
    """Add the model's thinking budget and template variables, and the dialect's defaults; those of
    the request win.

    A budget is a template variable too; one of 0 switches reasoning off.
    """
    budget = request.thinking_budget
    if budget is None:
        budget = settings.thinking_budget
    elif budget == NO_LIMIT:
        budget = None
    variables = dict(settings.chat_template_kwargs or {})
    if budget is not None:
        variables[BUDGET] = budget
    if budget == 0:
        variables["enable_thinking"] = False
    variables |= {**request.defaults.template_variables, **request.template_variables}
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = request.defaults.max_tokens
    return replace(
        request, thinking_budget=budget, template_variables=variables, max_tokens=max_tokens
    )
