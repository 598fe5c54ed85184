"""From samples to a verdict: the recommendation and its effects, as data and as a sentence.

Prompt lookup needs no model, so a draft model must be clearly faster to be recommended. `auto`
guards against a useless draft, so `draft` must be clearly faster than `auto`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from omlx.catalog import sentence
from omlx.measure.samples import PLAIN, Samples, TrialConfiguration
from omlx.measure.spread import Gain, Spread
from omlx.measure.texts import Kind

SIMPLEST_FIRST: Final = {"ngram": 0, "auto": 1, "draft": 2}
"""Order of consideration; a later strategy must beat the earlier ones."""

Changes = Mapping[Kind, Spread]
"""Speed-ups by kind of text."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`code`: one of `trial.verdict.*`, a sentence with fields `draft`, `gains`, `losses`.

    `configuration`: the recommendation; None recommends no change. `factor`: by which the rounds of
    a noisy trial differ.
    """

    code: str
    configuration: TrialConfiguration | None = None
    gains: Changes = field(default_factory=dict)
    losses: Changes = field(default_factory=dict)
    factor: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the input of `render_verdict`."""
        recommended = self.configuration
        return {
            "code": self.code,
            "draft": None if recommended is None else recommended.draft,
            "gains": _changes_record(self.gains),
            "losses": _changes_record(self.losses),
            "setup": None if recommended is None else recommended.to_json(),
            "factor": self.factor,
        }


def _changes_record(changes: Changes) -> list[dict[str, Any]]:
    records = []
    for kind, spread in changes.items():
        figures = spread.to_json(3)
        speedup = figures.pop("median")
        records.append({"kind": kind.value, "speedup": speedup, **figures})
    return records


def verdict(
    samples: Samples, configurations: Sequence[TrialConfiguration], kinds: Sequence[Kind]
) -> Verdict:
    """Return the verdict on `configurations` (plain decoding included) over `kinds`."""
    if any(samples.busy(each, kind) for each in configurations for kind in kinds):
        return Verdict("trial.verdict.busy")
    noise = [samples.noise(each, kind) for each in configurations for kind in kinds]
    if any(noise):
        return Verdict("trial.verdict.noisy", factor=round(max(filter(None, noise)), 1))
    best: TrialConfiguration | None = None
    for configuration in _in_order(samples, configurations):
        gains = _changes(samples, configuration, kinds, Gain.FASTER)
        if gains and _better(samples, configuration, best or PLAIN):
            best = configuration
    if best is not None:
        gains = _changes(samples, best, kinds, Gain.FASTER)
        losses = _changes(samples, best, kinds, Gain.SLOWER)
        suffix = "_but" if losses else ""
        return Verdict(f"trial.verdict.{best.strategy}{suffix}", best, gains, losses)
    tried = [configuration for configuration in configurations if configuration != PLAIN]
    lost = [_changes(samples, configuration, kinds, Gain.SLOWER) for configuration in tried]
    # Turning speculation off requires a clear loss with every configuration.
    if not tried or not all(lost):
        return Verdict("trial.verdict.none")
    smallest = {}
    for kind in kinds:
        spreads = [changes[kind] for changes in lost if kind in changes]
        if spreads:
            # The smallest loss: even the best configuration is slower.
            smallest[kind] = max(spreads, key=lambda spread: spread.median)
    return Verdict("trial.verdict.off", PLAIN, losses=smallest)


def _in_order(
    samples: Samples, configurations: Sequence[TrialConfiguration]
) -> list[TrialConfiguration]:
    """Return measured configurations, simplest first; equally simple ones fastest first."""
    ranks = {}
    for configuration in configurations:
        speedups = samples.overall(configuration)
        if configuration != PLAIN and speedups:
            median = Spread.of(list(speedups.values())).median
            ranks[configuration] = (SIMPLEST_FIRST[configuration.strategy], -median)
    return sorted(ranks, key=lambda configuration: ranks[configuration])


def _better(samples: Samples, ours: TrialConfiguration, theirs: TrialConfiguration) -> bool:
    """Return whether `ours` is clearly faster than `theirs` over all kinds of text."""
    our_speedups, their_speedups = samples.overall(ours), samples.overall(theirs)
    rounds = [number for number in our_speedups if number in their_speedups]
    ratios = [our_speedups[number] / their_speedups[number] for number in rounds]
    return bool(ratios) and Spread.of(ratios).gain is Gain.FASTER


def _changes(
    samples: Samples, configuration: TrialConfiguration, kinds: Sequence[Kind], gain: Gain
) -> dict[Kind, Spread]:
    """Return the kinds with a clear `gain`, largest change first."""
    changes = {}
    for kind in kinds:
        spread = samples.spread(configuration, kind)
        if spread is not None and spread.gain is gain:
            changes[kind] = spread
    faster = gain is Gain.FASTER
    return dict(sorted(changes.items(), key=lambda change: change[1].median, reverse=faster))


def render_verdict(verdict: Mapping[str, Any], language: str = "en") -> str:
    """Render the sentence of a verdict's record in a cataloged language.

    `{gains}` becomes "code edits 1.8× (1.7–1.9) and prose 1.1× (1.1–1.2)".
    """
    gains = join_list([_change(change, language) for change in verdict["gains"]], language)
    losses = join_list([_change(change, language) for change in verdict["losses"]], language)
    factor = verdict.get("factor")  # older results have none
    params = {"draft": verdict["draft"], "gains": gains, "losses": losses, "factor": factor}
    return sentence(verdict["code"], params, language)


def join_list(parts: Sequence[str], language: str = "en") -> str:
    """Return "a", "a and b", or "a, b and c" in `language`."""
    if len(parts) < 2:
        return "".join(parts)
    first = parts[0]
    for part in parts[1:-1]:
        first = sentence("trial.list.more", {"first": first, "next": part}, language)
    return sentence("trial.list.last", {"first": first, "last": parts[-1]}, language)


def _change(change: Mapping[str, Any], language: str) -> str:
    kind = sentence(f"trial.kind.{change['kind']}", {}, language)
    names = ("speedup", "low", "high")
    params = {name: f"{change[name]:.1f}" for name in names if name in change}
    code = "trial.change"
    if "low" not in change:  # a result that was stored before verdicts had a spread
        code = "trial.change.median"
    return sentence(code, {"kind": kind, **params}, language)
