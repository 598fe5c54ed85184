"""Kept answers: inputs that reproduce an answer, with its receipt; recorder and store.

The store is bounded in number and bytes (the oldest are deleted first) and in age by `MAX_AGE_S`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import sqlite3
import time
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from omlx import __version__, storage
from omlx.engine.types import FinishReason, Request, Sampling
from omlx.errors import BadRequest, NotFound
from omlx.models.catalog.facts import ModelIdentity, digest, versions
from omlx.models.pool.served import ServedModel
from omlx.records import Receipt
from omlx.storage import Failure
from omlx.text.constraint import Constraint
from omlx.text.output import OutputSpec, stop_matcher


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """One finished choice, as ids and parameters: no text but stop strings, schemas and tools.

    `limit` is the largest possible number of answer tokens. `at` is in seconds since the epoch.
    """

    id: str
    model: str
    at: float
    identity: ModelIdentity
    versions: Mapping[str, str]
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    sampling: Sampling
    limit: int
    spec: OutputSpec
    constraint: Constraint
    finish: FinishReason
    exactness: str = ""

    def receipt(self) -> Receipt:
        # A receipt hashes every input that the tokens depend on.
        settings = (self.sampling, self.limit, self.spec, self.constraint, self.finish)
        return Receipt(
            id=self.id,
            model=self.model,
            **asdict(self.identity),
            settings=digest(_SETTINGS.dump_python(settings)),
            prompt=ids_digest(self.prompt),
            answer=ids_digest(self.answer),
            tokens=len(self.answer),
            seed=self.sampling.seed,
            versions=dict(self.versions),
            exactness=self.exactness,
        )

    def request(self, served: ServedModel) -> Request:
        """Rebuild the request of this answer, with fresh stop matcher and mask.

        Raises BadRequest if the model does not support the constraint.
        """
        grammars = served.grammars
        mask = self.constraint.mask(grammars, served.thinking, *self.constraint.compile(grammars))
        return Request(
            id=self.id,
            tokens=self.prompt,
            sampling=self.sampling,
            max_tokens=self.limit,
            stop_ids=self.spec.stop_ids,
            stop=stop_matcher(served.tokenizer, self.spec),
            mask=mask,
        )


_SETTINGS: Final = TypeAdapter(tuple[Sampling, int, OutputSpec, Constraint, FinishReason])


def current_versions() -> dict[str, str]:
    return {"omlx": __version__, **versions()}


def ids_digest(ids: Sequence[int]) -> str:
    """Return the SHA-256 of token ids, each as 8 bytes in the machine's order."""
    return hashlib.sha256(array("q", ids).tobytes()).hexdigest()


MAX_ANSWERS: Final = 4096
MAX_BYTES: Final = 128 << 20
MAX_AGE_S: Final = 30 * 86400
_SWEEP_EVERY: Final = 64
"""Answers kept between two sweeps."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SWEEP: Final = """
delete from receipts where at < ? or id in (
    select id from (
        select id, row_number() over newest as number, sum(length(content)) over newest as total
        from receipts window newest as (order by at desc, id))
    where number > ? or total > ?)
"""

log = logging.getLogger("omlx.receipts")


@dataclass(frozen=True, slots=True)
class _Content:
    answer: KeptAnswer
    receipt: Receipt


_JSON: Final = TypeAdapter(_Content)


class AnswerStore:
    """The kept answers of `home`. Thread-safe."""

    def __init__(
        self, home: Path, *, max_answers: int = MAX_ANSWERS, max_bytes: int = MAX_BYTES
    ) -> None:
        self._home = home
        self._max_answers, self._max_bytes = max_answers, max_bytes
        self._kept = count()

    def keep(self, answer: KeptAnswer, receipt: Receipt) -> None:
        """Write an answer, and sweep every `_SWEEP_EVERY` answers. Raises a `Failure`."""
        text = _JSON.dump_json(_Content(answer, receipt)).decode()
        row = (answer.id, time.time(), text)
        query = "insert or replace into receipts values (?, ?, ?)"
        storage.use(self._home, lambda db: db.execute(query, row))
        if next(self._kept) % _SWEEP_EVERY == 0:
            self.sweep()

    def get(self, id: str) -> tuple[KeptAnswer, Receipt]:
        """Return a kept answer and its receipt as written.

        Raises NotFound, and BadRequest for damaged content.
        """
        rows = self._query("select content from receipts where id = ?", [id])
        if not rows:
            raise NotFound("receipt.not_found", id=id)
        try:
            content = _JSON.validate_json(rows[0][0])
        except ValueError as error:
            raise BadRequest("receipt.damaged", id=id) from error
        return content.answer, content.receipt

    def ids(self, id: str) -> list[str]:
        """Return the ids of an answer's kept choices, or `[id]` if `id` names a choice."""
        of_answer = "id = ?1 or substr(id, 1, length(?1) + 1) = ?1 || '-'"
        rows = self._query(f"select id from receipts where {of_answer}", [id])
        found = [name for (name,) in rows]
        return [id] if id in found else sorted(found, key=lambda name: (len(name), name))

    def kept(self, ids: Iterable[str]) -> frozenset[str]:
        """Return the ids of answers whose first choice is kept."""
        firsts = {f"{id}-0": id for id in ids if _ID.fullmatch(id)}
        marks = ", ".join("?" * len(firsts))
        found = self._query(f"select id from receipts where id in ({marks})", list(firsts))
        return frozenset(firsts[first] for (first,) in found)

    def sweep(self) -> None:
        bounds = (time.time() - MAX_AGE_S, self._max_answers, self._max_bytes)
        storage.use(self._home, lambda db: db.execute(_SWEEP, bounds))

    def _query(self, query: str, ids: Sequence[str]) -> list[tuple[Any, ...]]:
        def read(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
            return db.execute(query, ids).fetchall()

        if not all(map(_ID.fullmatch, ids)):
            return []
        try:
            return storage.use(self._home, read, create=False)
        except FileNotFoundError:
            return []
        except Failure as error:
            log.warning("kept answers not read", extra={"fields": {"detail": str(error)}})
            return []


@dataclass(slots=True)
class _Choice:
    request: Request
    spec: OutputSpec
    constraint: Constraint
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason = FinishReason.CANCELLED


class Recorder:
    """Recorder for the choices of one request. Lives on the event loop."""

    def __init__(self, store: AnswerStore, served: ServedModel) -> None:
        self._store, self._served = store, served
        self._choices: dict[int, _Choice] = {}

    def begin(
        self, number: int, request: Request, spec: OutputSpec, constraint: Constraint
    ) -> None:
        """Record choice `number` from its first token on."""
        self._choices[number] = _Choice(request, spec, constraint)

    def commit(self, number: int, tokens: tuple[int, ...]) -> None:
        self._choices[number].tokens += tokens

    def finish(self, number: int, reason: FinishReason) -> None:
        self._choices[number].finish = reason

    async def keep(self, number: int) -> Receipt:
        """Store a finished choice, and return its receipt.

        Choices with images are not stored; a failed write is logged. Both set `kept` to False.
        """
        answer = self._answer(number, self._choices.pop(number))
        return await asyncio.to_thread(self._keep, answer)

    def _answer(self, number: int, choice: _Choice) -> KeptAnswer:
        served, request = self._served, choice.request
        room = served.context_length - len(request.tokens)
        return KeptAnswer(
            id=f"{request.group}-{number}",
            model=served.id,
            at=time.time(),
            identity=served.identity,
            versions=current_versions(),
            prompt=request.tokens,
            answer=tuple(choice.tokens),
            sampling=request.sampling,
            limit=room if request.max_tokens is None else min(room, request.max_tokens),
            spec=replace(choice.spec, salt=""),  # ids of calls, no tokens, depend on it
            constraint=choice.constraint,
            finish=choice.finish,
            exactness=str(served.exactness),
        )

    def _keep(self, answer: KeptAnswer) -> Receipt:
        receipt = answer.receipt()
        if min(answer.prompt) < 0:  # ids of images
            return replace(receipt, kept=False)
        try:
            self._store.keep(answer, receipt)
        except Failure as error:
            log.warning("answer not kept", extra={"fields": {"detail": str(error)}})
            return replace(receipt, kept=False)
        return receipt
