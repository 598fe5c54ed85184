"""Responses that were kept, so that a next one can go on from them, and those that are being made.

In memory, bounded in number and in bytes; the oldest go first. Nothing survives the process.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.errors import BadRequest, NotFound
from omlx.server.dialect import Json
from omlx.server.openai.items import Conversation, Item
from omlx.server.openai.response import ResponseEncoder
from omlx.server.stream import GenerationStream

MAX_RESPONSES: Final = 1024
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished response, its input as items, and the conversation up to its end, as messages.

    Each as JSON: the same as Python's objects takes several times the memory, and nobody could count it.
    """

    response: bytes
    items: bytes
    messages: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items) + len(self.messages)


@dataclass(frozen=True, slots=True)
class Open:
    stream: GenerationStream
    encoder: ResponseEncoder


class ResponseStore:
    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.open: dict[str, Open] = {}
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response: Json, items: list[Json], conversation: Sequence[Json]) -> None:
        """`conversation` is what the response answers."""
        said = Conversation(conversation)
        for at, item in enumerate(response["output"]):
            said.add(Item.model_validate(item), f"output[{at}]")
        kept = Kept(_encoded(response), _encoded(items), _encoded(said.messages))
        self._kept[response["id"]] = kept
        self._bytes += kept.size
        while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size

    def before(self, id: str | None) -> list[Json]:
        """The conversation that a next response goes on from. Raises BadRequest if it is not here (any more)."""
        if id is None:
            return []
        if id not in self._kept:
            raise BadRequest("response.not_kept", param="previous_response_id", id=id)
        self._kept.move_to_end(id)
        messages: list[Json] = json.loads(self._kept[id].messages)
        return messages

    def get(self, id: str) -> Json:
        """A response, finished or in the making. Raises NotFound."""
        if (running := self.open.get(id)) is not None:
            return running.encoder.response
        response: Json = json.loads(self._find(id).response)
        return response

    def items(self, id: str) -> list[Json]:
        """Raises NotFound."""
        items: list[Json] = json.loads(self._find(id).items)
        return items

    def delete(self, id: str) -> None:
        """Raises NotFound."""
        self._bytes -= self._find(id).size
        del self._kept[id]

    def _find(self, id: str) -> Kept:
        if id not in self._kept:
            raise NotFound("response.not_found", id=id)
        return self._kept[id]


def _encoded(value: Json | Sequence[Json]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
