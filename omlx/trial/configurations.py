"""The configurations that a trial compares, and their order.

    visit of a draft   load it, warm up with every configuration, then for each kind of text
                       plain  ngram  draft  auto      in one round
                       ngram  draft  auto  plain      in the next: it begins with the next one

Plain decoding is part of every visit, so both answers of a ratio lie seconds apart. Drafts are
visited one after another within a round, since only one of them is resident at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from omlx.measure.interleave import rotate
from omlx.trial.texts import Kind

MIN_ROUNDS: Final = 3
MAX_ROUNDS: Final = 5
WARM_UP_TOKENS: Final = 16
"""Length of the answers that warm up a visit; they are not counted."""


@dataclass(frozen=True, slots=True)
class TrialConfiguration:
    """A speculation strategy (off, ngram, draft, auto) and the id of its draft model, if any."""

    strategy: str
    draft: str | None = None

    @property
    def name(self) -> str:
        return self.strategy if self.draft is None else f"{self.strategy}:{self.draft}"

    @property
    def changes(self) -> dict[str, str | None]:
        """The model settings that apply it; None leaves a setting to the next source."""
        return {"speculation": self.strategy, "draft_model": self.draft}


PLAIN: Final = TrialConfiguration("off")
NGRAM: Final = TrialConfiguration("ngram")


@dataclass(frozen=True, slots=True)
class Visit:
    """What runs while `draft` is resident; None accepts any resident draft."""

    draft: str | None
    configurations: tuple[TrialConfiguration, ...]

    def order(self, kinds: Sequence[Kind], number: int) -> list[tuple[Kind, TrialConfiguration]]:
        """Return what round `number`, counted from 0, runs one after another."""
        return list(product(kinds, rotate(self.configurations, number)))


def visits(drafts: Sequence[str]) -> tuple[Visit, ...]:
    """Return the visits of a round. The first one also measures prompt lookup."""
    if not drafts:
        return (Visit(None, (PLAIN, NGRAM)),)
    first, *others = drafts
    return (
        Visit(first, (PLAIN, NGRAM, *_with(first))),
        *(Visit(draft, (PLAIN, *_with(draft))) for draft in others),
    )


def configurations(drafts: Sequence[str]) -> tuple[TrialConfiguration, ...]:
    """Return all that is compared, plain decoding first."""
    every = [PLAIN, NGRAM]
    for draft in drafts:
        every += _with(draft)
    return tuple(dict.fromkeys(every))


def find_configuration(name: str, drafts: Sequence[str]) -> TrialConfiguration | None:
    """Return the configuration of that name, or None if a trial of these drafts has none."""
    return {item.name: item for item in configurations(drafts)}.get(name)


def _with(draft: str) -> tuple[TrialConfiguration, TrialConfiguration]:
    return TrialConfiguration("draft", draft), TrialConfiguration("auto", draft)
