"""All checks of a server, one after another."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from omlx.conformance import constrained, refusals, repeat, streams
from omlx.conformance.client import Client
from omlx.conformance.outcome import Failed, NotSupported, Outcome, Result

Run: TypeAlias = Callable[[Client], str]
"""Returns what was seen if the check passes. Raises Failed, NotSupported, and what `http.client`
raises."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    title: str
    run: Run


CHECKS: Final = (
    Check("greedy", "Temperature 0 repeats", repeat.repeats_greedy),
    Check("seed", "Temperature 0.8 with a seed repeats", repeat.repeats_seed),
    Check("greedy_company", "Temperature 0 beside other requests", repeat.greedy_in_company),
    Check("seed_company", "Temperature 0.8 beside other requests", repeat.seed_in_company),
    Check("seeds", "Other seeds, other answers", repeat.seeds_differ),
    Check("cached", "Cached tokens of a second turn", repeat.cached_tokens),
    Check("stream", "Stream and whole answer", streams.stream_equals_whole),
    Check("usage", "Usage adds up", streams.usage_adds_up),
    Check("stream_usage", "Usage of a stream", streams.stream_usage),
    Check("stop", "Stop strings", streams.stop_strings),
    Check("tool_call", "Tool call of a named function", constrained.tool_call),
    Check("tool_stream", "Tool call in a stream", constrained.tool_stream),
    Check("schema", "Structured output (json_schema)", constrained.schema_holds),
    Check("errors", "Errors of invalid requests", refusals.errors_have_a_form),
)


def judge(check: Check, client: Client) -> Result:
    """Run a check. A connection that fails is a failure of the server."""
    try:
        outcome, seen = Outcome.PASSED, check.run(client)
    except NotSupported as refusal:
        outcome, seen = Outcome.NOT_SUPPORTED, str(refusal)
    except Failed as failure:
        outcome, seen = Outcome.FAILED, str(failure)
    except (OSError, http.client.HTTPException) as error:
        outcome, seen = Outcome.FAILED, str(error) or type(error).__name__
    return Result(check.name, check.title, outcome, seen)
