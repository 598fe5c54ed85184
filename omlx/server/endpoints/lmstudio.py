"""LM Studio's list of models, which programs read for context, kind and abilities."""

from __future__ import annotations

from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.server.endpoints.model_cards import ModelCard, ModelCards
from omlx.server.request.dialect import Json

_CAPABILITIES: Final = {"tools": "tool_use"}
"""LM Studio's names of ours."""


class LmStudioEndpoints:
    def __init__(self, cards: ModelCards) -> None:
        self._cards = cards

    async def models(self, request: Request) -> Response:
        """The usable models."""
        records = [_record(card) for card in await self._cards.all()]
        return JSONResponse({"object": "list", "data": records})

    async def model(self, request: Request, name: str) -> Response:
        """One model. Its id may contain slashes, raw or percent-encoded."""
        return JSONResponse(_record(await self._cards.one(name)))


def _record(card: ModelCard) -> Json:
    publisher, slash, _ = card.entry.id.partition("/")
    abilities = [_CAPABILITIES[name] for name in card.capabilities if name in _CAPABILITIES]
    record: Json = {
        "id": card.id,
        "object": "model",
        "type": _kind(card),
        "publisher": publisher if slash else "local",
        "arch": card.entry.model_type or "",
        "compatibility_type": "mlx",
        "quantization": (card.entry.quantization or "").replace("-", ""),
        "state": "not-loaded" if card.served is None else "loaded",
        "max_context_length": card.context_length,
        "capabilities": abilities,
    }
    if card.served is not None:
        record["loaded_context_length"] = card.served.context_length
    return record


def _kind(card: ModelCard) -> str:
    if card.facts.embeddings:
        return "embeddings"
    return "llm" if card.no_vision is not None else "vlm"
