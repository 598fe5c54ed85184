"""Every setting that a request may have overrides the configured value, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from omlx.draft_length import DraftLength
from omlx.settings.schema import Scope, Settings, table
from omlx.text.constraint import BudgetMask
from tests.server.dialects import user
from tests.server.running import DRAFT, HYBRID, TARGET, Running, omlx

Seen: TypeAlias = Callable[[Running], object]

ROWS = [
    name for name, row in table().items() if row.allowed_in(Scope.REQUEST) and name != "receipt"
]
"""The engine knows no receipts: `tests/cli/test_verify.py` has that setting."""

TOKENS = {
    "num_draft_tokens": (6, 3),
    "draft_min": (6, 3),
    "draft_max": (6, 3),
    "max_tokens": (6, 3),
    "top_k": (6, 3),
}
GIVEN: dict[str, tuple[Any, Any]] = {
    **dict.fromkeys(ROWS, (0.25, 0.75)),
    **TOKENS,
    "thinking_budget": (6, 3),
    "speculation": ("off", "ngram:n=4"),
    "draft_model": (HYBRID, DRAFT),
    "chat_template_kwargs": ({"enable_thinking": True}, {"enable_thinking": False}),
}
"""By setting: the configured value, and the request's."""


def draft_length(running: Running) -> DraftLength:
    assert running.engine.newest is not None
    assert running.engine.newest.speculation.draft_length is not None
    return running.engine.newest.speculation.draft_length


def seen(running: Running, name: str) -> object:
    """The request as the engine received it."""
    request = running.engine.newest
    assert request is not None
    match name:
        case "speculation":
            return str(request.speculation.strategy)
        case "draft_model":
            return running.pool.last_used.draft if running.pool.last_used is not None else None
        case "num_draft_tokens":
            return draft_length(running).fixed
        case "draft_min":
            return draft_length(running).min
        case "draft_max":
            return draft_length(running).max
        case "max_tokens":
            return request.max_tokens
        case "chat_template_kwargs":
            return len(request.tokens)
        case "thinking_budget":
            return request.mask.budget if isinstance(request.mask, BudgetMask) else None
        case _:
            return getattr(request.sampling, name)


@pytest.mark.parametrize("name", ROWS)
def test_what_a_request_says_goes_before_what_is_configured(name: str) -> None:
    configured, said = GIVEN[name]
    ask: dict[str, Any] = {"model": TARGET, "messages": user("Hello.")}
    if name != "max_tokens":
        ask["max_tokens"] = 2
    with omlx(Settings(**{name: configured})) as running:
        http = running.http
        found = []
        for more in ({}, {name: said}, {}):
            http.post("/v1/chat/completions", json={**ask, **more}).raise_for_status()
            found.append(seen(running, name))
    if name == "chat_template_kwargs":
        assert found[0] == found[2] > found[1]  # it opens a thought, which is a token or more
    elif name == "draft_model":
        assert found == [configured, said, said]  # who has no opinion takes the one that is loaded
    else:
        assert found == [configured, said, configured]
