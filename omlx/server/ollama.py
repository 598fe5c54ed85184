"""The paths of Ollama by which programs look for a server and its models: version, tags, show.

Copilot's Ollama provider, for one, lists models with them and then uses /v1/chat/completions.
Generation by Ollama's own paths is not implemented.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from omlx import __version__
from omlx.errors import OmlxError
from omlx.server.dialect import Json
from omlx.server.fields import Body, read
from omlx.server.model_cards import ModelCard, ModelCards

VERSION: Final = "0.18.3"
"""The version of Ollama whose answers these are: programs require a least one."""
_LATEST: Final = ":latest"
_CAPABILITIES: Final = {
    "completion": "completion",
    "tools": "tools",
    "reasoning": "thinking",
    "embeddings": "embedding",
}
"""Ollama's names of ours."""


class ShowRequest(Body):
    """The body of POST /api/show; older programs say `name`."""

    model: str | None = None
    name: str | None = None


class OllamaEndpoints:
    def __init__(self, cards: ModelCards) -> None:
        self._cards = cards

    async def root(self, request: Request) -> Response:
        """One line, for programs and people who ask whether a server is here."""
        return PlainTextResponse(f"omlx {__version__} is running\n")

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def tags(self, request: Request) -> Response:
        """The usable models."""
        return JSONResponse({"models": [_tag(card) for card in await self._cards.all()]})

    async def show(self, request: Request) -> Response:
        """One model: its context length and what it can do."""
        try:
            body = read(ShowRequest, await request.body())
            name = (body.model or body.name or "").removesuffix(_LATEST)
            card = await self._cards.one(name or None)
        except OmlxError as error:  # in Ollama's form
            return JSONResponse({"error": error.message}, error.status)
        return JSONResponse(_shown(card))


def _tag(card: ModelCard) -> Json:
    return {
        "name": card.entry.id,
        "model": card.entry.id,
        "modified_at": _modified_at(card),
        "size": card.entry.size_bytes,
        "digest": sha256(card.entry.id.encode()).hexdigest(),
        "details": _details(card),
    }


def _shown(card: ModelCard) -> Json:
    family = card.entry.model_type or ""
    capabilities = [_CAPABILITIES[name] for name in card.capabilities if name in _CAPABILITIES]
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": _modified_at(card),
        "details": _details(card),
        "capabilities": capabilities,
        "model_info": {
            "general.architecture": family,
            "general.basename": card.entry.name,
            f"{family}.context_length": card.context_length,
        },
    }


def _details(card: ModelCard) -> Json:
    family = card.entry.model_type or ""
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": card.entry.quantization or "",
    }


def _modified_at(card: ModelCard) -> str:
    return datetime.fromtimestamp(card.facts.created, UTC).isoformat().replace("+00:00", "Z")
