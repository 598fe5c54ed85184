"""One line per architecture: classes of its cache, rollback, batching."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from mlx_lm.models.cache import KVCache

from lab.probe.batching import life, long_life, uneven_rounds
from lab.probe.reference import Row, references
from lab.probe.rewinding import draft, shorten, verify, way_back
from omlx.engine.device.batch_probe import batching_refusal, uneven_refusal
from omlx.engine.device.rewind import leaves, unsupported
from omlx.engine.types import run_through
from tests import zoo

HEADER = "| architecture | layer caches | rollback | rows share a batch | drafts in a batch |"
RULE = "|---|---|---|---|---|"


@dataclass(frozen=True)
class Verdict:
    """`rewinds`: trim, slice, snapshot, or no with the reason. `batches` and `drafts`: yes, or
    no with the reason.
    """

    name: str
    caches: str
    rewinds: str
    batches: str
    drafts: str

    @property
    def line(self) -> str:
        return f"| {self.name} | {self.caches} | {self.rewinds} | {self.batches} | {self.drafts} |"


def examine(name: str) -> Verdict:
    """Probe one architecture."""
    model = zoo.build(name)
    parts = leaves(zoo.make_cache(model))
    rows = references(model)
    caches = " ".join(sorted({type(leaf).__name__ for leaf in parts}))
    rollback = rewinds(rows)
    batches = _batches(rows)
    drafts = "no"
    if batches.startswith("yes") and not rollback.startswith("no"):
        drafts = _drafts(rows)
    return Verdict(name, caches, rollback, batches, drafts)


def rewinds(rows: list[Row]) -> str:
    """Return the rollback of the cache, or the reason for none: as target, draft model and stored
    conversation.
    """
    cache = zoo.make_cache(rows[0].model)
    if unknown := unsupported(cache):
        return f"no: {', '.join(unknown)} is unknown"
    if not rows[0].read(0, len(rows[0].tokens), cache) <= rows[0].tolerance:
        return "no: the model gives other logits in one pass than token by token"
    gaps = {"verification": verify(rows[0]).gap, "drafting": draft(rows[1]).gap}
    # A cache of KVCache alone keeps every row that it ever read.
    if any(type(leaf) is not KVCache for leaf in leaves(cache)):
        gaps["shortening"] = shorten(rows).gap
    wrong = [what for what, gap in gaps.items() if not gap <= rows[0].tolerance]
    return f"no: wrong logits after {', '.join(wrong)}" if wrong else way_back(rows[0].model)


def _batches(rows: list[Row]) -> str:
    """Return whether rows share a batch."""
    model = rows[0].model
    reason = run_through(batching_refusal(model, partial(zoo.make_cache, model), zoo.VOCAB_SIZE))
    if reason is not None and "layer" in reason.params:
        return f"no: {reason.params['layer']} does not merge"
    lived = _first_fault(
        rows[0].tolerance,
        {
            "": lambda: life(rows),
            "rows of one token: ": lambda: life(rows, (3, 30, 1)),
            "past the window: ": lambda: long_life(rows),
        },
    )
    assert reason is None or lived, f"{reason} but the long probe finds nothing"
    if lived:
        return f"no: {lived}"
    return (
        "yes, once each holds a token"
        if _first_fault(rows[0].tolerance, {"": lambda: life(rows, (5, 3, 0))})
        else "yes"
    )


def _drafts(rows: list[Row]) -> str:
    """Return whether rows of a batch read windows of different lengths and are rolled back."""
    model = rows[0].model
    reason = run_through(uneven_refusal(model, partial(zoo.make_cache, model), zoo.VOCAB_SIZE))
    fault = _first_fault(rows[0].tolerance, {"": lambda: uneven_rounds(rows)})
    assert (reason is None) == (not fault), f"{reason}, and the long probe finds: {fault}"
    return f"no: {fault}" if fault else "yes"


def _first_fault(tolerance: float, probes: dict[str, Callable[[], float]]) -> str:
    for what, probe in probes.items():
        try:
            gap = probe()
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            return f"{what}raises {type(error).__name__}"
        if not gap <= tolerance:
            return f"{what}wrong logits"
    return ""


def page(verdicts: Iterable[Verdict]) -> str:
    """Return the generated part of docs/model-support.md."""
    by_library: dict[bool, list[Verdict]] = {False: [], True: []}
    for verdict in verdicts:
        by_library[verdict.name in zoo.BORROWED_NAMES].append(verdict)
    left_out = "\n".join(f"- {name}: {reason}." for name, reason in sorted(zoo.SKIPPED.items()))
    return (
        f"{_table(by_library[False])}\nNot examined:\n\n{left_out}\n\n"
        f"### Classes of mlx-vlm\n\n{_table(by_library[True])}"
    )


def _table(verdicts: list[Verdict]) -> str:
    verdicts = sorted(verdicts, key=lambda verdict: verdict.name.lower())
    ways = Counter(verdict.rewinds.split(":")[0] for verdict in verdicts)
    speculable = ", ".join(f"{way} {ways[way]}" for way in ("trim", "slice", "snapshot", "no"))
    shared = sum(verdict.batches.startswith("yes") for verdict in verdicts)
    drafts = sum(verdict.drafts == "yes" for verdict in verdicts)
    counts = (
        f"{len(verdicts)} configurations: {speculable}; "
        f"rows share a batch in {shared}, and draft in it in {drafts}."
    )
    lines = "\n".join(verdict.line for verdict in verdicts)
    return f"{counts}\n\n{HEADER}\n{RULE}\n{lines}\n"
