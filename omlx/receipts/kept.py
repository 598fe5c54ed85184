"""Kept answers: the inputs that reproduce an answer, and its receipt."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from pydantic import TypeAdapter

from omlx import __version__
from omlx.engine.types import FinishReason, Request, Sampling
from omlx.models.catalog.identity import ModelIdentity, digest, versions
from omlx.models.pool.served import ServedModel
from omlx.records import Receipt
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
