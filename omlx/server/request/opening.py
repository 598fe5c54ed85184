"""Opening of an answer: the engine's requests of its choices, new, or continued from a record.

A batch is what one delivery of the engine brought. Parsers and encoders are fed by batches, so the
same batches make the same events of a stream, at the same places.
"""

from __future__ import annotations

import secrets
import uuid
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from pydantic import ConfigDict, TypeAdapter

from omlx.engine.types import Event, Failed, Finished, PrefillProgress, Request, TokensCommitted
from omlx.errors import Conflict, EngineError
from omlx.models.pool.served import Lease
from omlx.server.request.engine_requests import TokenizedRequest, engine_requests
from omlx.server.request.generation_request import GenerationRequest

_PART: Final = TypeAdapter(
    tuple[int, list[TokensCommitted | Finished | PrefillProgress]],
    config=ConfigDict(ser_json_inf_nan="constants"),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The record of an interrupted answer, which continues it together with its request.

    `digest` is that of `digest_of`. `batches` were generated in `attempts` runs, in order; `firsts`
    has the number of the first event that each of them made. `torn`: clients may have
    events behind those.
    """

    id: str
    attempts: int
    seed: int
    created: int
    digest: bytes
    batches: tuple[tuple[Event, ...], ...]
    firsts: tuple[int, ...]
    torn: bool

    @classmethod
    def read(
        cls,
        id: str,
        attempts: int,
        seed: int,
        created: int,
        digest: bytes,
        contents: Iterable[bytes],
        *,
        torn: bool,
    ) -> Recorded:
        """Read the batches that `dump` wrote.

        Scores of a prompt that no token follows are left out: the prompt is computed again.
        """
        parts = [_PART.validate_json(content) for content in contents]
        firsts, batches = tuple(first for first, _ in parts), [batch for _, batch in parts]
        begun = {e.request_id for batch in batches for e in batch if isinstance(e, TokensCommitted)}
        torn = torn or any(event.request_id not in begun for batch in batches for event in batch)
        recorded = cls(id, attempts, seed, created, digest, (), firsts, torn)
        named = []
        for batch in batches:
            events = [event for event in batch if event.request_id in begun]
            named.append(
                tuple(replace(e, request_id=f"{recorded.run_id}-{e.request_id}") for e in events)
            )
        return replace(recorded, batches=tuple(named))

    @property
    def run_id(self) -> str:
        """The id of the next run: the engine may not have ended the one before."""
        return f"{self.id}.{self.attempts + 1}"

    def events(self, request_id: str) -> Iterator[Event]:
        """Yield the events of one choice, in order."""
        for batch in self.batches:
            yield from (event for event in batch if event.request_id == request_id)

    def tokens(self, request_id: str) -> tuple[int, ...]:
        """Return the output of one choice so far."""
        tokens: list[int] = []
        for event in self.events(request_id):
            if isinstance(event, TokensCommitted):
                tokens += event.tokens
        return tuple(tokens)

    def resume(self, requests: Sequence[Request], digest: bytes) -> list[Request | None]:
        """Return the requests that continue an answer's choices; None for one that has ended.

        Advances their stop matchers and masks. Raises Conflict if the same tokens would not follow:
        `digest` is that of `requests`.
        """
        if digest != self.digest:
            raise Conflict("answer.changed", id=self.id)
        return [self._resume(request) for request in requests]

    def _resume(self, request: Request) -> Request | None:
        if any(isinstance(event, Finished) for event in self.events(request.id)):
            return None
        tokens = self.tokens(request.id)
        if not tokens:
            return request
        for token in tokens:
            if request.stop is not None:
                request.stop.push(token)
            if request.mask is not None and not request.mask.advance(token):
                raise EngineError("engine.mask", token=token)
        every = request.tokens + tokens
        return replace(request, tokens=every, resumed=len(tokens), prompt_logprobs=None)


def dump(first: int, events: Sequence[Event]) -> bytes | None:
    """Return a batch as it is recorded, with the numbers of choices as names; None if it holds
    nothing that a stream shows. `first` is the number of the first event that it makes.
    """
    kept = [
        replace(event, request_id=event.request_id.rpartition("-")[2])
        for event in events
        if not isinstance(event, Failed)
        and not (isinstance(event, PrefillProgress) and not event.logprobs)
    ]
    return _PART.dump_json((first, kept)) if kept else None


def digest_of(weights: str, budget: int | None, requests: Iterable[Request]) -> bytes:
    """Return a hash of all that decides the tokens of an answer beside the body of its request:
    prompts, sampling with its seed, limits, the thinking budget, and `weights`, which identifies
    the model.
    """
    digest = sha256(f"{weights} {budget}".encode())
    for request in requests:
        if request.sampling.choice == 0:
            digest.update(array("q", request.tokens).tobytes())
        stops = sorted(request.stop_ids)
        facts = (request.sampling, request.max_tokens, stops, request.top_logprobs)
        digest.update(repr(facts).encode())
    return digest.digest()


def merge_tokens(events: Iterable[Event]) -> list[Event]:
    """Merge neighbouring tokens of each choice: delivered together, they make a single frame."""
    merged: list[Event] = []
    newest: dict[str, int] = {}  # request id: index of its last event in `merged`
    for event in events:
        index = newest.get(event.request_id)
        last = None if index is None else merged[index]
        if (
            index is not None
            and isinstance(event, TokensCommitted)
            and isinstance(last, TokensCommitted)
        ):
            merged[index] = _joined(last, event)
        else:
            newest[event.request_id] = len(merged)
            merged.append(event)
    return merged


def _joined(first: TokensCommitted, second: TokensCommitted) -> TokensCommitted:
    logprobs = None
    if second.logprobs is not None:
        logprobs = (*(first.logprobs or ()), *second.logprobs)
    return TokensCommitted(
        first.request_id, first.tokens + second.tokens, first.drafted + second.drafted, logprobs
    )


SEED_BITS: Final = 53
"""Bits of a random seed — clients that keep numbers as doubles can send it back exactly."""


class Opening:
    """A request whose model is leased and whose texts are tokenized.

    `continued` has the requests that continue choices, by id; None for one that has ended.
    """

    def __init__(
        self,
        lease: Lease,
        request: GenerationRequest,
        tokenized: TokenizedRequest,
        id_prefix: str,
        priority: int,
        recorded: Recorded | None,
    ) -> None:
        self.lease, self.request, self.tokenized = lease, request, tokenized
        self.recorded = recorded
        self.id = f"{id_prefix}{uuid.uuid4().hex}"
        self.seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        run_id = None
        if recorded is not None:
            self.id, self.seed, run_id = recorded.id, recorded.seed, recorded.run_id
        self.choices = list(
            engine_requests(lease.served, request, tokenized, self.id, self.seed, run_id, priority)
        )
        self.continued: dict[str, Request | None] = {}
        self.digest = b""

    @property
    def wants_receipt(self) -> bool:
        if self.request.max_tokens == 0:  # there is nothing to verify
            return False
        if self.request.receipt is None:
            return self.lease.served.speculation.settings.receipt
        return self.request.receipt

    def resume(self, weights: str) -> None:
        """Compute the digest, and continue what was recorded. Raises Conflict."""
        requests = [choice.request for choice in self.choices]
        self.digest = digest_of(weights, self.request.thinking_budget, requests)
        if self.recorded is not None:
            continued = self.recorded.resume(requests, self.digest)
            ids = (request.id for request in requests)
            self.continued = dict(zip(ids, continued, strict=True))
