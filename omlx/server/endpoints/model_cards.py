"""Model cards for clients that choose a model: context, abilities, size, state.

Field names are those read by clients: vLLM's `max_model_len`, LM Studio's `max_context_length`,
llama.cpp's `meta`, OpenRouter's `context_length`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx.errors import Reason
from omlx.models.catalog.catalog import Profile
from omlx.models.catalog.facts import ModelFacts, model_facts
from omlx.models.catalog.registry import ModelEntry
from omlx.models.library.choose import Library
from omlx.models.pool.pool import Pool, why_no_vision
from omlx.models.pool.served import ServedModel
from omlx.models.vision.support import read_vision_off
from omlx.server.http.body import Json
from omlx.text.calls.markup import call_format
from omlx.text.reasoning import reasoning_format


@dataclass(frozen=True, slots=True)
class ModelCard:
    """`served` is None unless the model is loaded, and more precise than the files.

    `no_vision`: reason why images are not read. `profile`: set on the card of a profile.
    """

    entry: ModelEntry
    facts: ModelFacts
    context_length: int
    served: ServedModel | None = None
    no_vision: Reason | None = None
    profile: Profile | None = None

    @property
    def id(self) -> str:
        """Name that clients send as `model`."""
        return self.entry.id if self.profile is None else self.profile.id

    @property
    def input_modalities(self) -> list[str]:
        return ["text"] if self.no_vision is not None else ["text", "image"]

    @property
    def tools(self) -> bool:
        if self.served is None:
            return self.facts.tools
        return call_format(self.served.tokenizer) is not None

    @property
    def reasoning(self) -> bool:
        if self.served is None:
            return self.facts.reasoning
        return self.facts.reasoning or reasoning_format(self.served.tokenizer) is not None

    @property
    def library(self) -> str | None:
        """Library of the model's classes with its version."""
        library = self.entry.library
        if self.served is not None and self.served.identity.library:
            library = Library(self.served.identity.library)
        return None if library is None else library.label

    @property
    def capabilities(self) -> list[str]:
        """Abilities; `speculation` is known only for loaded models."""
        if self.facts.embeddings:
            return ["embeddings"]
        if self.facts.reranks:
            return ["rerank"]
        if not self.facts.generates:
            return []
        known = {
            "completion": True,
            "structured_output": True,
            "tools": self.tools,
            "reasoning": self.reasoning,
            "speculation": self.served is not None and self.served.off_reason is None,
        }
        return [name for name, has in known.items() if has]

    def record(self) -> Json:
        organisation, slash, _ = self.entry.id.partition("/")
        record = {
            "id": self.id,
            "object": "model",
            "created": self.facts.created,
            "owned_by": organisation if slash else "local",
            "context_length": self.context_length,
            "max_model_len": self.context_length,
            "max_context_length": self.context_length,
            "meta": {"n_ctx": self.context_length, "size": self.entry.size_bytes},
            "capabilities": self.capabilities,
            "input_modalities": self.input_modalities,
            "loaded": self.served is not None,
            "model_type": self.entry.model_type,
            "quantization": self.entry.quantization,
            "library": self.library,
            "size_bytes": self.entry.size_bytes,
        }
        if self.profile is not None:
            record["parent"] = self.entry.id
        return record


class ModelCards:
    """Cards of the usable models."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def all(self) -> list[ModelCard]:
        """Return each model, followed by its profiles."""
        cards = []
        for card in await self._cards(self._pool.models):
            profiles = self._pool.catalog.profiles(card.entry.id)
            cards += [card, *(replace(card, profile=profile) for profile in profiles)]
        return cards

    async def one(self, name: str | None) -> ModelCard:
        """Return the card of a model or profile. Raises as `Pool.resolve`."""
        (card,) = await self._cards([self._pool.resolve(name)])
        return replace(card, profile=self._pool.catalog.profile(name))

    async def _cards(self, entries: Sequence[ModelEntry]) -> list[ModelCard]:
        served = {model.id: model for model in self._pool.loaded}

        def read() -> list[ModelCard]:
            return [self._card(entry, served.get(entry.id)) for entry in entries]

        return await asyncio.to_thread(read)

    def _card(self, entry: ModelEntry, served: ServedModel | None) -> ModelCard:
        files = entry.files
        facts, no_vision = model_facts(files, entry.id), read_vision_off(files)
        settings = self._pool.catalog.configuration.resolve(entry.id).settings
        no_vision = why_no_vision(served, no_vision, vision=settings.vision)
        if served is not None:
            return ModelCard(entry, facts, served.context_length, served, no_vision)
        length = min(facts.longest_context, settings.max_context or facts.context_length)
        return ModelCard(entry, facts, length, no_vision=no_vision)
