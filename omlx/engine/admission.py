"""What a request must be before it is queued."""

from __future__ import annotations

from omlx.engine.limits import Limits
from omlx.engine.types import Request
from omlx.errors import BadRequest


def judge(request: Request, limits: Limits) -> None:
    """Raise BadRequest for what could not be served: ids beyond the model's arrays, no room, nonsense."""
    tokens, sampling = request.tokens, request.sampling
    if not tokens:
        raise BadRequest("engine.prompt_empty", param="messages")
    if len(tokens) >= (limit := limits.context_length):
        raise BadRequest("engine.prompt_too_long", param="messages", tokens=len(tokens), limit=limit)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise BadRequest("engine.max_tokens", param="max_tokens", value=request.max_tokens)
    if not sampling.temperature >= 0.0:
        raise BadRequest("engine.temperature", param="temperature", value=str(sampling.temperature))
    biased = [token for token, _ in sampling.logit_bias]
    for param, ids in (("messages", tokens), ("prediction", request.speculation.prediction), ("logit_bias", biased)):
        if ids and not 0 <= min(ids) <= max(ids) < limits.vocab_size:
            raise BadRequest("engine.token_id", param=param, size=limits.vocab_size)
