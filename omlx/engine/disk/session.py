"""Session files: one conversation with the prefix states of its tokens.

    magic · size of head │ head (JSON) │ records of the pieces, as in a segment of the disk store

Keys of records follow from the tokens, and each record has a checksum. Pure Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Annotated, Any, BinaryIO, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omlx.engine.disk.record import Damaged, Record, TokenChain, read_record
from omlx.engine.piece import Kind
from omlx.errors import TooLarge

MAX_HEAD_BYTES: Final = 64 << 20
"""Bytes — as many as all stored responses of a server may take."""

_HEAD: Final = Struct("<8sQ")
_MAGIC: Final = b"omlxsess"


class Session(BaseModel):
    """Head of a session file.

    `facts`: properties that states depend on. `states`: kind, start and stop of each record, which
    together restore the first `restored` of `tokens`. `response`, `items` and `messages`: stored
    response, input and conversation.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    id: Annotated[str, Field(min_length=1, max_length=200)]
    model: Annotated[str, Field(min_length=1, max_length=500)]
    saved_at: float
    facts: dict[str, str]
    tokens: list[int]
    restored: Annotated[int, Field(ge=0)] = 0
    states: list[tuple[Kind, int, int]] = []
    response: dict[str, Any]
    items: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def write_session(path: Path, session: Session, records: Iterable[Record]) -> int:
    """Write a new private file, and return the number of bytes.

    Deletes the file where that fails. Raises TooLarge for a head that `read_head` would refuse,
    OSError, and what `records` raises.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    head = session.model_dump_json().encode()
    if len(head) > MAX_HEAD_BYTES:
        raise TooLarge("session.too_large", size=len(head), limit=MAX_HEAD_BYTES)
    descriptor = os.open(path, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, len(head)) + head)
            for record in records:
                for part in record.encode():
                    file.write(part)
            return file.tell()
    except BaseException:
        path.unlink()
        raise


def read_head(file: BinaryIO) -> Session:
    """Read the head of a session file. Raises Damaged, OSError."""
    magic, nbytes = b"", 0
    if len(start := file.read(_HEAD.size)) == _HEAD.size:
        magic, nbytes = _HEAD.unpack(start)
    if magic != _MAGIC:
        raise Damaged("it does not begin as one")
    if nbytes > MAX_HEAD_BYTES:
        raise Damaged(f"its head has more than {MAX_HEAD_BYTES >> 20} MB")
    if len(head := file.read(nbytes)) < nbytes:
        raise Damaged("it is cut off")
    try:
        session = Session.model_validate_json(head)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Damaged(f"{place or 'head'}: {first['msg']}") from error
    spans = set(session.states)
    length = len(session.tokens)
    inside = all(0 <= start < stop <= length for _, start, stop in spans)
    if not inside or len(spans) < len(session.states) or session.restored > length:
        raise Damaged("its states are not those of its tokens")
    return session


def read_states(file: BinaryIO, session: Session, block_tokens: int) -> Iterator[Record]:
    """Yield the records behind the head. Raises Damaged, also for bytes behind the last one."""
    chain = TokenChain(session.tokens, block_tokens)
    for kind, start, stop in session.states:
        yield read_record(file, chain.record(kind, start, stop))
    if file.read(1):
        raise Damaged("it is longer than its head says")
