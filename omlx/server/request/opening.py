"""Opening of an answer: the engine's requests of its choices, new or continued."""

from __future__ import annotations

import secrets
import uuid
from typing import Final

from omlx.engine.types import Request
from omlx.models.pool.served import Lease
from omlx.server.request.engine_requests import TokenizedRequest, engine_requests
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.recorded import Recorded, digest_of

SEED_BITS: Final = 53
"""Of a random seed: clients that keep numbers as doubles, as JavaScript does, can send it back
exactly."""


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
