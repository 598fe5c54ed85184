"""A model's prefix cache over HTTP: how much of a prompt it holds, and clearing it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.engine.thread import EngineThread
from omlx.engine.types import PromptForecast
from omlx.errors import EngineDead
from omlx.models.pool.pool import Pool
from omlx.records import BeginningStats
from omlx.server.beginnings.prewarmer import Prewarmer
from omlx.server.beginnings.store import Known
from omlx.server.dialects.openai import chat_request as chat_request
from omlx.server.http.body import read_body
from omlx.server.http.keys import check_main
from omlx.server.request.dialect import Json
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest

FORECAST_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """A beginning of `tokens` tokens, and what it would take now; None while the engine is busy
    with something long.
    """

    known: Known
    tokens: int
    now: PromptForecast | None

    def to_json(self) -> Json:
        return {
            "client": self.known.client,
            "conversations": self.known.conversations,
            "used_at": self.known.used_at,
            "tokens": self.tokens,
            "cached_tokens": None if self.now is None else self.now.cached,
            "first_token_s": None if self.now is None else self.now.first_token_s,
        }


class PrefixService:
    """Prefix caches by model, for the API and the dashboard."""

    def __init__(
        self,
        engine: EngineThread,
        pool: Pool,
        generations: GenerationService,
        prewarmer: Prewarmer | None = None,
    ) -> None:
        self._engine = engine
        self._prewarmer = prewarmer
        self._pool = pool
        self._generations = generations

    def check(self, name: str) -> None:
        """Raise NotFound for an unknown model."""
        self._pool.resolve(name)

    async def clear(self, name: str) -> None:
        """Forget every prefix of a model and how its prompts begin, in memory and on disk; returns
        after the current step.

        Raises NotFound, EngineDead.
        """
        model = self._pool.resolve(name).id
        await asyncio.wrap_future(self._engine.clear_prefixes(model))
        await self._pool.residents.remove_prefixes(model)
        if self._prewarmer is not None:
            await self._prewarmer.forget(model)

    async def probe(self, name: str, request: GenerationRequest) -> Json:
        """Return how many tokens the prompt has, how many of them are cached and when its first
        token would come, null if the model is not loaded.

        Modifies nothing, loads nothing. Raises NotFound, EngineDead, and BadRequest for an invalid
        prompt.
        """
        model = self._pool.resolve(name).id
        tokens = await self._generations.prompt_ids(replace(request, model=model))
        forecast = await asyncio.wrap_future(self._engine.forecast(model, tokens))
        return {
            "object": "prefix.probe",
            "model": model,
            "prompt_tokens": len(tokens),
            "cached_tokens": None if forecast is None else forecast.cached,
            "first_token_s": None if forecast is None else forecast.first_token_s,
        }

    async def beginnings(self, model: str) -> list[Forecast]:
        """Return the beginnings of a loaded model's prompts that return, the one used last first,
        and what each would take now. Does not wait for a busy engine.
        """
        if self._prewarmer is None:
            return []
        known = await self._prewarmer.known(model)
        prompts = [(*tokens, *tokens[-1:]) for _, tokens in known]  # a user's message follows
        forecasts: Sequence[PromptForecast | None] = [None] * len(prompts)
        with suppress(TimeoutError, EngineDead):
            asked = [asyncio.wrap_future(self._engine.forecast(model, each)) for each in prompts]
            forecasts = await asyncio.wait_for(asyncio.gather(*asked), FORECAST_TIMEOUT_S)
        return [
            Forecast(one, len(tokens), forecast)
            for (one, tokens), forecast in zip(known, forecasts, strict=True)
        ]

    def prewarming(self, model: str) -> BeginningStats | None:
        """Return how far a model's beginnings are; None if it is not loaded, or none are stored."""
        return None if self._prewarmer is None else self._prewarmer.stats().get(model)


class PrefixEndpoints:
    def __init__(self, prefixes: PrefixService) -> None:
        self._prefixes = prefixes

    async def clear(self, request: Request, name: str) -> Response:
        """Clear a model's prefix cache, on disk too."""
        check_main(request.scope)
        await self._prefixes.clear(name)
        return Response(status_code=204)

    async def probe(self, request: Request, name: str) -> Response:
        """How many prompt tokens of a chat request are in the prefix cache. Nothing is computed."""
        self._prefixes.check(name)  # an unknown model is reported before a body that cannot be read
        asked = await read_body(request, lambda body: chat_request.parse(body).generation_request())
        return JSONResponse(await self._prefixes.probe(name, asked))
