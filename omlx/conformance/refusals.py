"""Checks that requests which cannot be served are refused in the API's form."""

from __future__ import annotations

import json
from typing import Final

from omlx.conformance.client import Client, Json
from omlx.conformance.outcome import Failed
from omlx.conformance.questions import GREEDY, QUESTION

INVALID: Final[dict[str, Json]] = {
    "messages": {**GREEDY, "messages": "none"},
    "temperature": {"messages": QUESTION, "temperature": "warm"},
    "stream": {**GREEDY, "messages": "none", "stream": True},
}
"""Requests by the name of what is wrong in them."""


def errors_have_a_form(client: Client) -> str:
    bodies = {name: json.dumps({"model": client.model, **body}) for name, body in INVALID.items()}
    for name, body in {**bodies, "JSON": "{"}.items():
        status, record = client.post(body)
        if status != 400:
            raise Failed(f"invalid {name}: status {status}, not 400")
        error = record.get("error")
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            raise Failed(f"invalid {name}: no error.message in {json.dumps(record)[:80]}")
    return f"{len(bodies) + 1} invalid requests, each 400 with error.message"
