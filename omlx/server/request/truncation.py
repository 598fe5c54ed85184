"""Truncation of conversations longer than the context, where a request allows it.

Whole turns are left out, the oldest first, never the leading system messages. Their tokens are
rounded up to quarters of the context: for some turns the same ones are left out, and the prompts
share a prefix.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from math import ceil

from omlx.errors import Param, Reason
from omlx.server.request.generation_request import GenerationRequest
from omlx.text.template.render import Prompt


def truncate(
    request: GenerationRequest,
    context_length: int,
    render: Callable[[GenerationRequest], Prompt],
) -> Prompt:
    """Return the prompt of a conversation without its oldest turns, as far as needed.

    It is too long only if the last turn is. Raises what `render` does.
    """
    whole, quarter = render(request), context_length // 4
    reserve = min(quarter, quarter if request.max_tokens is None else request.max_tokens)
    excess = len(whole.tokens) + max(1, reserve) - context_length
    if excess <= 0:
        return whole
    most = len(whole.tokens) - ceil(excess / quarter) * quarter
    messages = request.messages
    first = next((i for i, one in enumerate(messages) if one["role"] != "system"), 0)
    turns = [i for i in range(first + 1, len(messages)) if messages[i]["role"] == "user"]
    prompts: dict[int, Prompt] = {}

    def fits(start: int) -> bool:
        kept = (*messages[:first], *messages[start:])
        prompts[start] = render(replace(request, messages=kept))
        return len(prompts[start].tokens) <= most

    at = bisect_left(turns, True, key=fits)
    if not turns:
        return whole
    start = turns[min(at, len(turns) - 1)]
    left_out: dict[str, Param] = {
        "messages": start - first,
        "tokens": len(whole.tokens),
        "limit": context_length,
    }
    prompt = prompts[start]
    return replace(prompt, changes=(Reason("conversation.truncated", left_out), *prompt.changes))
