"""Verification of kept answers: check receipt hashes and model, then decode again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isinf
from typing import TYPE_CHECKING, Any, Final

from omlx.catalog import sentence
from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, Conflict, NotFound, Param, Reason
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import ServedModel
from omlx.receipts.kept import AnswerStore, KeptAnswer, current_versions

if TYPE_CHECKING:
    from omlx.receipts.plain import Difference, PlainDecoding


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verifying one choice.

    `mismatches` contradict the receipt, or the end of the answer. Within `tolerance`, in logits,
    rounding may decide. `difference` is the first token beyond `tolerance`; comparing stops there.
    `texts` maps the ids of differing tokens.
    """

    id: str
    model: str
    tokens: int
    mismatches: tuple[Reason, ...] = ()
    notes: tuple[Reason, ...] = ()
    near_ties: tuple[Difference, ...] = ()
    difference: Difference | None = None
    texts: Mapping[int, str] = field(default_factory=dict)
    tolerance: float = 0.0

    @property
    def same(self) -> bool:
        """Whether plain decoding gives this answer, near-ties aside."""
        return not self.mismatches and self.difference is None

    @property
    def reasons(self) -> list[Reason]:
        """Reasons of the verdict, the most important first."""
        return [*self.mismatches, *self._tokens(), *self.notes]

    def lines(self) -> str:
        texts = [sentence(reason.code, reason.params) for reason in self.reasons]
        return "\n".join(f"{self.id}: {text}" for text in texts) + "\n"

    def record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "model": self.model,
            "same": self.same,
            "tokens": self.tokens,
            "tolerance": self.tolerance,
            "near_ties": [_difference(tie) for tie in self.near_ties],
            "difference": None if self.difference is None else _difference(self.difference),
            "reasons": [reason.to_json() for reason in self.reasons],
        }

    def _tokens(self) -> list[Reason]:
        if self.difference is not None:
            code = "verify.impossible" if isinf(self.difference.margin) else "verify.differs"
            return [self._reason(code, self.difference)]
        if self.mismatches:
            return []
        ties = [self._reason("verify.near_tie", tie) for tie in self.near_ties]
        if ties:
            return [Reason("verify.same", {"tokens": self.tokens, "ties": len(ties)}), *ties]
        return [Reason("verify.identical", {"tokens": self.tokens})]

    def _reason(self, code: str, tie: Difference) -> Reason:
        tokens = {"answered": tie.answered, "decoded": tie.decoded}
        params: dict[str, Param] = {"place": tie.place}
        for name, token in tokens.items():
            params[name] = f"{token} {self.texts.get(token, '')!r}"
        if not isinf(tie.margin):
            params["margin"] = float(f"{tie.margin:.3g}")
        return Reason(code, params)


def _difference(tie: Difference) -> dict[str, Any]:
    return {**asdict(tie), "margin": None if isinf(tie.margin) else tie.margin}


_OTHER: Final = {
    "weights": "verify.other_weights",
    "tokenizer": "verify.other_tokenizer",
    "template": "verify.other_template",
    "dtype": "verify.other_dtype",
    "kv_bits": "verify.other_kv_bits",
}
"""Reason codes for a changed model, by receipt field."""


class Verifier:
    """Verifier on models of `pool`; verification passes alternate with running requests."""

    def __init__(self, engine: EngineThread, pool: Pool, store: AnswerStore) -> None:
        self._engine, self._pool, self._store = engine, pool, store
        self._verifying = False

    async def kept(self, ids: Iterable[str]) -> frozenset[str]:
        """Return the ids of answers that can be verified."""
        return await asyncio.to_thread(self._store.kept, tuple(ids))

    async def verify_answer(self, id: str) -> list[Verdict]:
        """Verify all choices of an answer, or the named choice.

        Raises NotFound, Conflict while another answer is verified, and as `verify`.
        """
        if self._verifying:
            raise Conflict("verify.busy")
        self._verifying = True
        try:
            choices = await asyncio.to_thread(self._store.ids, id)
            if not choices:
                raise NotFound("receipt.not_found", id=id)
            return [await self.verify(choice) for choice in choices]
        finally:
            self._verifying = False

    async def verify(self, id: str, claim: Mapping[str, Any] | None = None) -> Verdict:
        """Decode a kept choice again; `claim` holds the receipt fields of a client.

        Loads the model. Raises NotFound, BadRequest, Overloaded if the KV cache does not fit, and
        loading errors.
        """
        answer, receipt = await asyncio.to_thread(self._store.get, id)
        claimed = _contradictions(answer, {**asdict(receipt), **(claim or {})})
        lease = await self._pool.lease(answer.model)
        try:
            verdict = await self._decode(answer, lease.served)
        finally:
            lease.release()
        return replace(verdict, mismatches=(*claimed, *verdict.mismatches))

    async def _decode(self, answer: KeptAnswer, served: ServedModel) -> Verdict:
        from omlx.receipts.plain import PlainDecoding  # noqa: PLC0415 — see `import_mlx_lm`

        resident = self._pool.residents.find(served.id)
        if resident is not None and resident.stages:
            raise BadRequest("verify.stages", model=served.id)
        tokens = len(answer.answer)
        then, now = asdict(answer.identity), asdict(served.identity)
        changed = [Reason(code) for name, code in _OTHER.items() if then[name] != now[name]]
        notes = tuple(_updates(answer))
        if changed:
            return Verdict(answer.id, answer.model, tokens, tuple(changed), notes)
        if any(not 0 <= token < served.vocab_size for token in answer.prompt):
            raise BadRequest("receipt.damaged", id=answer.id)
        request = await asyncio.to_thread(answer.request, served)
        decoding = PlainDecoding(request, answer.answer, answer.finish)
        while not await asyncio.wrap_future(self._engine.read_text(served.id, decoding.advance)):
            pass
        ends = () if decoding.wrong_end is None else (decoding.wrong_end,)
        return Verdict(
            answer.id,
            answer.model,
            tokens,
            mismatches=ends,
            notes=notes,
            near_ties=tuple(decoding.near_ties),
            difference=decoding.difference,
            texts=_texts(served, decoding),
            tolerance=decoding.tolerance,
        )


def _texts(served: ServedModel, decoding: PlainDecoding) -> dict[int, str]:
    """Return the texts of differing tokens, by id."""
    differences = [*decoding.near_ties, *filter(None, [decoding.difference])]
    ids = {token for each in differences for token in (each.answered, each.decoded)}
    known = [token for token in ids if 0 <= token < served.vocab_size]
    return {token: served.token_bytes(token).decode(errors="replace") for token in known}


def _contradictions(answer: KeptAnswer, claim: Mapping[str, Any]) -> list[Reason]:
    """Return a reason per field of `claim` that contradicts the answer."""
    receipt = asdict(answer.receipt())
    fields = [name for name in receipt if name in claim and claim[name] != receipt[name]]
    return [Reason("verify.contradicts", {"field": name}) for name in fields]


def _updates(answer: KeptAnswer) -> Iterator[Reason]:
    """Yield a reason per library whose version has changed since the answer."""
    now = current_versions()
    for name, version in answer.versions.items():
        if now.get(name) != version:
            yield Reason(
                "verify.updated", {"name": name, "then": version, "now": now.get(name, "-")}
            )
