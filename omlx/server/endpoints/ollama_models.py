"""Ollama's paths about models: version, tags, ps, show; and those that change them, refused."""

from __future__ import annotations

import time
from functools import partial
from hashlib import sha256
from math import isinf
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from omlx import __version__
from omlx.errors import BadRequest
from omlx.models.catalog.catalog import LATEST
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ModelStatus
from omlx.server.dialects.ollama.fields import Named
from omlx.server.dialects.ollama.times import iso
from omlx.server.endpoints.model_cards import ModelCard, ModelCards
from omlx.server.http.body import read_body
from omlx.server.request.dialect import Json
from omlx.server.request.fields import read

VERSION: Final = "0.18.3"
"""The version of Ollama whose answers these are: programs require a least one."""
NEVER: Final = "2318-01-01T00:00:00Z"
"""When a model is unloaded that stays in memory."""
_CAPABILITIES: Final = {
    "completion": "completion",
    "tools": "tools",
    "reasoning": "thinking",
    "embeddings": "embedding",
}
"""Ollama's names of ours."""
_VISION: Final = "vision"


class ShowRequest(Named):
    """The body of POST /api/show."""


class ModelEndpoints:
    def __init__(self, pool: Pool, cards: ModelCards) -> None:
        self._pool = pool
        self._cards = cards

    async def root(self, request: Request) -> Response:
        """One line, for programs and people who ask whether a server is here."""
        return PlainTextResponse(f"omlx {__version__} is running\n")

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def tags(self, request: Request) -> Response:
        """The usable models."""
        return JSONResponse({"models": [_tag(card) for card in await self._cards.all()]})

    async def running(self, request: Request) -> Response:
        """The models in memory, and when they are unloaded unless they are used. A profile is no
        copy of its model."""
        cards = await self._cards.all()
        loaded = [card for card in cards if card.served is not None and card.profile is None]
        return JSONResponse({"models": [self._running(card) for card in loaded]})

    async def show(self, request: Request) -> Response:
        """One model: its context length and what it can do."""
        body = await read_body(request, partial(read, ShowRequest))
        return JSONResponse(_shown(await self._cards.one(body.id)))

    async def unsupported(self, request: Request) -> Response:
        """Refused: models are changed in the dashboard and on the command line."""
        raise BadRequest("ollama.models", param="model", path=request.url.path)

    def _running(self, card: ModelCard) -> Json:
        status = self._pool.status(card.entry.id)
        tag = _tag(card)
        del tag["modified_at"]
        return tag | {
            "size": status.weights_bytes,
            "size_vram": status.weights_bytes,
            "context_length": card.context_length,
            "expires_at": _expires_at(status),
        }


def _expires_at(status: ModelStatus) -> str:
    if status.ttl_s is None or isinf(status.ttl_s):
        return NEVER
    return iso(time.time() + status.ttl_s - (status.idle_s or 0.0))


def _tag(card: ModelCard) -> Json:
    name = _tagged(card.id)
    return {
        "name": name,
        "model": name,
        "modified_at": iso(card.facts.created),
        "size": card.entry.size_bytes,
        "digest": sha256(card.id.encode()).hexdigest(),
        "details": _details(card),
    }


def _tagged(name: str) -> str:
    """Return the name with a tag: clients add one to names without it, and compare."""
    return name if ":" in name else name + LATEST


def _shown(card: ModelCard) -> Json:
    family = card.entry.model_type or ""
    capabilities = [_CAPABILITIES[name] for name in card.capabilities if name in _CAPABILITIES]
    if card.no_vision is None:
        capabilities.append(_VISION)
    return {
        "modelfile": "",
        "parameters": f"num_ctx {card.context_length}",
        "template": "",
        "modified_at": iso(card.facts.created),
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
        "parent_model": "" if card.profile is None else card.entry.id,
        "format": "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": card.entry.quantization or "",
    }
