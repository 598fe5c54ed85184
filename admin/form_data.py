"""Fields of an HTML form."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import Request


async def form_data(request: Request) -> dict[str, str]:
    """Return the last value of each field of a urlencoded form, without empty ones."""
    fields = parse_qs((await request.body()).decode("latin-1"))
    return {name: values[-1] for name, values in fields.items()}
