"""Stored responses, which later requests can continue, and responses in progress.

Memory is bounded by number and bytes, with LRU eviction. A journal keeps a copy on disk, restored
by the next process.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

from omlx.errors import BadRequest, NotFound
from omlx.server.dialects.openai.responses_encoder import ResponseEncoder
from omlx.server.dialects.openai.responses_items import Conversation, Item
from omlx.server.http.errors import field_error
from omlx.server.http.transport import Json
from omlx.server.journal.answer import Replay
from omlx.server.journal.journal import AnswerFile, Journal, Owned, StoredRow
from omlx.server.request.stream import GenerationStream

MAX_RESPONSES: Final = 1024
MAX_BYTES: Final = 64 << 20
RESTORE_S: Final = 60.0
"""Seconds — limit of a start's wait for responses of an earlier process."""
_REFERENCE: Final = "item_reference"
_ID_BYTES: Final = 200
"""Bytes of memory for an item's id in the index."""
_FIELDS: Final = ("url", "image_url", "file_data")
_PREFIX: Final = "omlx-image:"
_NAME: Final = re.compile(rb"omlx-image:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response, its input items, and the conversation up to its end.

    Each as JSON: Python objects take several times the memory, and an unknown amount. `ids`: of all
    items, input and output. `images`: names of the data URIs, held in `StoredImages`. `replay`:
    the events of a response streamed in the background.
    """

    response: bytes
    items: bytes
    messages: bytes
    ids: tuple[str, ...]
    images: tuple[str, ...] = ()
    replay: Replay | None = None

    @property
    def size(self) -> int:
        texts = len(self.response) + len(self.items) + len(self.messages)
        events = 0 if self.replay is None else self.replay.nbytes
        return texts + events + _ID_BYTES * len(self.ids)

    def by_id(self) -> dict[str, Json]:
        items = [*json.loads(self.items), *json.loads(self.response)["output"]]
        return {item["id"]: item for item in items}


@dataclass(frozen=True, slots=True)
class Open:
    stream: GenerationStream
    encoder: ResponseEncoder


class SavedResponse(NamedTuple):
    """A finished response, input items, and the conversation including the answer."""

    response: Json
    items: list[Json]
    messages: list[Json]

    def renamed(self) -> SavedResponse:
        """Return the same with a new id."""
        return self._replace(response=self.response | {"id": f"resp_{uuid.uuid4().hex}"})


class ResponseStore:
    """Responses and items by owner: the ids of other owners are unknown."""

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        journal: Journal | None = None,
    ) -> None:
        self.open: dict[Owned, Open] = {}
        self._stored: OrderedDict[Owned, StoredResponse] = OrderedDict()
        self._images = StoredImages()
        self._holders: dict[Owned, list[Owned]] = {}  # of an item: its responses, the newest last
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._bytes = 0
        self._journal = journal

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, owned: Owned) -> bool:
        return owned in self._stored or owned in self.open

    async def restore(self, journal: Journal) -> None:
        """Load the responses of an earlier process."""

        def read(file: AnswerFile) -> list[tuple[Owned, StoredResponse]]:
            rows, images = file.responses()
            uris.update(images)
            return [(Owned(row.owner, row.id), _stored(*row[2:5])) for row in rows]

        uris: dict[str, str] = {}
        for owned, stored in await journal.run(read, RESTORE_S) or ():
            names = self._images.adopt((stored.items, stored.messages), uris)
            self._add(owned, replace(stored, images=names))
        self._shrink()

    def keep(
        self,
        owner: str,
        response: Json,
        items: list[Json],
        conversation: Sequence[Json],
        replay: Replay | None = None,
    ) -> None:
        """Store a response with its input; `conversation`: the messages answered.

        `replay`: all events of a response that may be streamed again.
        """
        continued = Conversation(conversation)
        for at, item in enumerate(response["output"]):
            continued.add(Item.model_validate(item), f"output[{at}]")
        self.put(owner, SavedResponse(response, items, continued.messages), replay)

    def put(self, owner: str, saved: SavedResponse, replay: Replay | None = None) -> None:
        """Store a response. Raises KeyError, TypeError and ValueError for other contents."""
        response, text = saved.response, encoded(saved.response)
        (asked, messages), images = self._images.hold([saved.items, saved.messages])
        stored = _stored(text, asked, messages)
        owned = Owned(owner, response["id"])
        if self._journal is not None:
            texts = (stored.response, stored.items, stored.messages)
            row = StoredRow(owned.name, owner, *texts, time.time())
            self._journal.post(partial(AnswerFile.keep, response=row, images=images))
        self._add(owned, replace(stored, images=tuple(images), replay=replay))
        self._shrink()

    def saved(self, owned: Owned) -> SavedResponse:
        """Return a finished response with its conversation. Raises NotFound. Counts as a use."""
        stored = self._find(owned)
        self._stored.move_to_end(owned)
        texts = (stored.response, stored.items, stored.messages)
        return SavedResponse(*(self._images.restored(json.loads(text)) for text in texts))

    def before(self, owned: Owned) -> list[Json]:
        """Return the conversation up to the end of a response.

        Raises BadRequest for a response never stored or evicted. Counts as a use.
        """
        if owned not in self._stored:
            raise BadRequest("response.not_kept", param="previous_response_id", id=owned.name)
        self._stored.move_to_end(owned)
        messages: list[Json] = self._images.restored(json.loads(self._stored[owned].messages))
        return messages

    def resolved(self, owner: str, items: Sequence[Item]) -> list[Item]:
        """Replace references by the owner's referenced items.

        Raises BadRequest for items that are not stored, and for a second reference to the same
        item, as in OpenAI's API: a short body cannot request a conversation of any length.
        """
        read: dict[Owned, dict[str, Json]] = {}
        seen: set[str] = set()
        resolved = []
        for at, item in enumerate(items):
            if item.type == _REFERENCE:
                id, field = item.id or "", f"input[{at}]"
                holders = self._holders.get(Owned(owner, id))
                if not holders:
                    raise field_error("response.no_item", field, id=id)
                if id in seen:
                    raise field_error("response.item_twice", field, id=id)
                holder = holders[-1]
                if holder not in read:
                    self._stored.move_to_end(holder)
                    read[holder] = self._images.restored(self._stored[holder].by_id())
                seen.add(id)
                item = Item.model_validate(read[holder][id])
            resolved.append(item)
        return resolved

    def get(self, owned: Owned) -> Json:
        """Return a response, finished or in progress. Raises NotFound."""
        if owned in self.open:
            return self.open[owned].encoder.response
        response: Json = json.loads(self._find(owned).response)
        return response

    def replay(self, owned: Owned) -> Replay | None:
        """Return the events of a finished response; None if not kept here."""
        return self._stored[owned].replay if owned in self._stored else None

    def items(self, owned: Owned) -> list[Json]:
        """Return the input items. Raises NotFound."""
        items: list[Json] = self._images.restored(json.loads(self._find(owned).items))
        return items

    def delete(self, owned: Owned) -> None:
        """Delete a response. Raises NotFound."""
        self._find(owned)
        self._drop(owned)

    def _find(self, owned: Owned) -> StoredResponse:
        if owned not in self._stored:
            raise NotFound("response.not_found", id=owned.name)
        return self._stored[owned]

    def _add(self, owned: Owned, stored: StoredResponse) -> None:
        self._stored[owned] = stored
        for item in stored.ids:
            self._holders.setdefault(Owned(owned.owner, item), []).append(owned)
        self._bytes += stored.size

    def _shrink(self) -> None:
        while (
            len(self._stored) > self._max_responses
            or self._bytes + self._images.nbytes > self._max_bytes
        ):
            self._drop(next(iter(self._stored)))

    def _drop(self, owned: Owned) -> None:
        stored = self._stored.pop(owned)
        self._bytes -= stored.size
        images = self._images.release(stored.images)
        if self._journal is not None:
            self._journal.post(partial(AnswerFile.forget, id=owned.name, images=images))
        for item in stored.ids:
            of_item = self._holders[Owned(owned.owner, item)]
            of_item.remove(owned)
            if not of_item:
                del self._holders[Owned(owned.owner, item)]


def _stored(response: bytes, items: bytes, messages: bytes) -> StoredResponse:
    """Build a stored response, without images, from JSON texts."""
    every = [*json.loads(items), *json.loads(response)["output"]]
    ids = tuple(dict.fromkeys(item["id"] for item in every))
    return StoredResponse(response, items, messages, ids)


class StoredImages:
    """Images and files of stored responses: each data URI once, referenced by name.

    A conversation is stored with every response, and its images would be with every turn. `nbytes`:
    total of the held URIs.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._uris: dict[str, str] = {}
        self._holders: Counter[str] = Counter()

    def hold(self, values: Sequence[Any]) -> tuple[list[bytes], dict[str, str]]:
        """Return `values` as JSON with names in place of data URIs, and the URIs by name.

        Pair with `release` of the names.
        """
        texts = list(map(encoded, values))
        uris: dict[str, str] = {}

        def named(uri: str) -> str:
            if not uri.startswith("data:"):
                return uri
            name = f"{_PREFIX}{sha256(uri.encode(errors='surrogatepass')).hexdigest()}"
            uris[name] = uri
            return name

        if any(b'"data:' in text for text in texts):
            texts = [encoded(_replaced(value, named)) for value in values]
        self._add(uris)
        return texts, uris

    def adopt(self, texts: Iterable[bytes], uris: Mapping[str, str]) -> tuple[str, ...]:
        """Hold the URIs named in JSON texts, and return their names, for `release`."""
        named = {name.decode() for name in _NAME.findall(b" ".join(texts))}
        held = {name: uris[name] for name in sorted(named & uris.keys())}
        self._add(held)
        return tuple(held)

    def _add(self, uris: Mapping[str, str]) -> None:
        for name, uri in uris.items():
            if name not in self._uris:
                self._uris[name] = uri
                self.nbytes += len(uri)
        self._holders.update(uris.keys())

    def restored(self, value: Any) -> Any:
        """Return a parsed value of `hold` with its data URIs."""
        if not self._uris:
            return value
        return _replaced(value, lambda name: self._uris.get(name, name))

    def release(self, names: Iterable[str]) -> list[str]:
        """Release `names`; return names without a remaining use."""
        dropped = []
        for name in names:
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]
                self.nbytes -= len(self._uris.pop(name))
                dropped.append(name)
        return dropped


def encoded(value: Any) -> bytes:
    """Return JSON. Raises ValueError for numbers that JSON does not have."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _replaced(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of a JSON value with the fields of images and files changed."""
    if isinstance(value, list):
        return [_replaced(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    copy = {}
    for key, item in value.items():
        is_data = key in _FIELDS and isinstance(item, str)
        copy[key] = change(item) if is_data else _replaced(item, change)
    return copy
