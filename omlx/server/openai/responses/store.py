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
from omlx.server.openai.responses.encoder import ResponseEncoder
from omlx.server.openai.responses.items import Conversation, Item
from omlx.server.stream import GenerationStream

MAX_RESPONSES: Final = 1024
MAX_BYTES: Final = 64 << 20
_REFERENCE: Final = "item_reference"
_PLACE_BYTES: Final = 200
"""What an item's id takes in the index, as Python keeps it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished response, its input as items, and the conversation up to its end, as messages.

    Each as JSON: the same as Python's objects takes several times the memory, and nobody could count it. `ids` are
    those of all items, input and output.
    """

    response: bytes
    items: bytes
    messages: bytes
    ids: tuple[str, ...]

    @property
    def size(self) -> int:
        return (
            len(self.response) + len(self.items) + len(self.messages) + _PLACE_BYTES * len(self.ids)
        )

    def by_id(self) -> dict[str, Json]:
        return {
            item["id"]: item
            for item in [*json.loads(self.items), *json.loads(self.response)["output"]]
        }


@dataclass(frozen=True, slots=True)
class Open:
    stream: GenerationStream
    encoder: ResponseEncoder


class ResponseStore:
    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.open: dict[str, Open] = {}
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._owners: dict[
            str, list[str]
        ] = {}  # by an item's id: the responses that have it, the newest last
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response: Json, items: list[Json], conversation: Sequence[Json]) -> None:
        """`conversation` is what the response answers."""
        said = Conversation(conversation)
        for at, item in enumerate(response["output"]):
            said.add(Item.model_validate(item), f"output[{at}]")
        ids = tuple(dict.fromkeys(item["id"] for item in [*items, *response["output"]]))
        kept = Kept(_encoded(response), _encoded(items), _encoded(said.messages), ids)
        self._kept[response["id"]] = kept
        for item in ids:
            self._owners.setdefault(item, []).append(response["id"])
        self._bytes += kept.size
        while len(self._kept) > self._max_responses or self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def before(self, id: str | None) -> list[Json]:
        """The conversation that a next response goes on from. Raises BadRequest if it is not here (any more)."""
        if id is None:
            return []
        if id not in self._kept:
            raise BadRequest("response.not_kept", param="previous_response_id", id=id)
        self._kept.move_to_end(id)
        messages: list[Json] = json.loads(self._kept[id].messages)
        return messages

    def resolved(self, items: Sequence[Item]) -> list[Item]:
        """With what references refer to in their place. Raises BadRequest for what is not here (any more).

        An item can be referred to once, as in OpenAI's API: a short body cannot ask for a conversation without end.
        """
        read: dict[str, dict[str, Json]] = {}
        seen: set[str] = set()
        told = []
        for at, item in enumerate(items):
            if item.type == _REFERENCE:
                id, field = item.id or "", f"input[{at}]"
                if not (owners := self._owners.get(id)):
                    raise BadRequest("response.no_item", param=field, field=field, id=id)
                if id in seen:
                    raise BadRequest("response.item_twice", param=field, field=field, id=id)
                if (owner := owners[-1]) not in read:
                    self._kept.move_to_end(owner)
                    read[owner] = self._kept[owner].by_id()
                seen.add(id)
                item = Item.model_validate(read[owner][id])
            told.append(item)
        return told

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
        self._find(id)
        self._drop(id)

    def _find(self, id: str) -> Kept:
        if id not in self._kept:
            raise NotFound("response.not_found", id=id)
        return self._kept[id]

    def _drop(self, id: str) -> None:
        kept = self._kept.pop(id)
        self._bytes -= kept.size
        for item in kept.ids:
            self._owners[item].remove(id)
            if not self._owners[item]:
                del self._owners[item]


def _encoded(value: Json | Sequence[Json]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
