"""What a form of HTML sends."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import Request


async def typed(request: Request) -> dict[str, str]:
    """The fields of a form that a browser has sent by itself, the last of each name; empty ones are left out."""
    return {
        name: values[-1]
        for name, values in parse_qs((await request.body()).decode("latin-1")).items()
    }
