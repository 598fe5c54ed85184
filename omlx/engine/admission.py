"""What a request must be before it is queued, and when its turn is worth waiting for."""

from __future__ import annotations

from collections.abc import Iterable

from omlx.engine.limits import Limits
from omlx.engine.sequence import Sequence, Status
from omlx.engine.types import Request
from omlx.errors import BadRequest


def finds_soon(request: Request, running: Iterable[Sequence]) -> bool:
    """Whether it is one more choice of a request whose prompt is being read: it waits, and finds the prefix then."""
    if not request.sampling.choice or request.prompt_logprobs is not None:
        return False
    return any(s.status is Status.PREFILL and s.request.tokens is request.tokens for s in running)


def validate(request: Request, limits: Limits) -> None:
    """Raise BadRequest for what could not be served: ids beyond the model's arrays, no room, nonsense."""
    tokens, sampling = request.tokens, request.sampling
    if not tokens:
        raise BadRequest("engine.prompt_empty", param="messages")
    if len(tokens) >= (limit := limits.context_length):
        raise BadRequest(
            "engine.prompt_too_long", param="messages", tokens=len(tokens), limit=limit
        )
    if request.max_tokens is not None and request.max_tokens < 1:
        raise BadRequest("engine.max_tokens", param="max_tokens", value=request.max_tokens)
    if not sampling.temperature >= 0.0:
        raise BadRequest("engine.temperature", param="temperature", value=str(sampling.temperature))
    biased = [token for token, _ in sampling.logit_bias]
    for param, ids in (
        ("messages", tokens),
        ("prediction", request.speculation.prediction),
        ("logit_bias", biased),
    ):
        if ids and not 0 <= min(ids) <= max(ids) < limits.vocab_size:
            raise BadRequest("engine.token_id", param=param, size=limits.vocab_size)
