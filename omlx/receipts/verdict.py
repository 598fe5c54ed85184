"""Verdict of a verification, as reasons, text and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import isinf
from typing import Any

from omlx.catalog import sentence
from omlx.errors import Param, Reason
from omlx.models.pool.served import reason_to_json


@dataclass(frozen=True, slots=True)
class Difference:
    """Token number `place` of an answer, counted from 0, which plain decoding does not choose.

    `margin`: the change of logits needed to choose `answered` instead of `decoded`; infinite if
    impossible, or if the answer ends at another place.
    """

    place: int
    answered: int
    decoded: int
    margin: float


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
            "reasons": [reason_to_json(reason) for reason in self.reasons],
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
