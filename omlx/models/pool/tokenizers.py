"""Tokenizers of models that are not loaded, the newest few."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from omlx.models.catalog.entry import ModelEntry
from omlx.models.pool.loader import read_tokenizer

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

MOST: Final = 4


class Tokenizers:
    def __init__(self) -> None:
        self._kept: dict[str, TokenizerWrapper] = {}

    async def of(self, entry: ModelEntry) -> TokenizerWrapper:
        """Read without weights, off the event loop. Raises ModelError."""
        if entry.id not in self._kept:
            self._kept[entry.id] = await asyncio.to_thread(read_tokenizer, entry)
            while len(self._kept) > MOST:
                del self._kept[next(iter(self._kept))]
        return self._kept[entry.id]
