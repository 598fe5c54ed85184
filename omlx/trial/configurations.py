"""The ways to run a model that a trial compares, and in which order.

    visit of a draft   it is loaded, everything is run shortly once, which does not count; then for each kind of text
                       plain  ngram  draft  auto      in the next round
                       ngram  draft  auto  plain      … beginning with the next one

Plain decoding is part of every visit, so that a ratio is one of answers that came within seconds of each other. Several
drafts are visited one after another in each round, since one at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.trial.texts import Kind

MIN_ROUNDS, MAX_ROUNDS = 3, 5
WARM_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class TrialConfiguration:
    """`strategy` is one of off, ngram, draft, auto; `draft` the id of the model that drafts, if one does."""

    strategy: str
    draft: str | None = None

    @property
    def name(self) -> str:
        return self.strategy if self.draft is None else f"{self.strategy}:{self.draft}"

    @property
    def changes(self) -> dict[str, str | None]:
        """What to store for a model so that it is run this way; None leaves it to the next source."""
        return {"speculation": self.strategy, "draft_model": self.draft}


PLAIN: Final = TrialConfiguration("off")
NGRAM: Final = TrialConfiguration("ngram")


@dataclass(frozen=True, slots=True)
class Visit:
    """What is run while `draft` is in memory, or whichever is if that is None."""

    draft: str | None
    configurations: tuple[TrialConfiguration, ...]

    def order(self, kinds: Sequence[Kind], number: int) -> list[tuple[Kind, TrialConfiguration]]:
        """What a round runs, the round counted from 0."""
        first = number % len(self.configurations)
        turned = (*self.configurations[first:], *self.configurations[:first])
        return [(kind, configuration) for kind in kinds for configuration in turned]


def visits(drafts: Sequence[str]) -> tuple[Visit, ...]:
    """The visits of a round. The first one also tries lookups, which need no draft."""
    if not drafts:
        return (Visit(None, (PLAIN, NGRAM)),)
    first, *others = drafts
    return (
        Visit(first, (PLAIN, NGRAM, *_with(first))),
        *(Visit(draft, (PLAIN, *_with(draft))) for draft in others),
    )


def configurations(drafts: Sequence[str]) -> tuple[TrialConfiguration, ...]:
    """Everything that is compared, plain decoding first."""
    return tuple(
        dict.fromkeys(
            configuration for visit in visits(drafts) for configuration in visit.configurations
        )
    )


def find_configuration(name: str, drafts: Sequence[str]) -> TrialConfiguration | None:
    return next(
        (configuration for configuration in configurations(drafts) if configuration.name == name),
        None,
    )


def _with(draft: str) -> tuple[TrialConfiguration, TrialConfiguration]:
    return TrialConfiguration("draft", draft), TrialConfiguration("auto", draft)
