"""What a strict model may do: its facts and limits, reduced to what was measured equal."""

from __future__ import annotations

from dataclasses import replace

from omlx.engine.inspection.facts import ModelFacts
from omlx.engine.limits import Limits
from omlx.errors import Param, Reason
from omlx.exactness import ROWS, WINDOWS, Bounds, Exactness


def strict_facts(
    facts: ModelFacts, limits: Limits, measured: Exactness
) -> tuple[ModelFacts, Limits]:
    """Return facts that refuse what changes bits, and limits with bounds."""
    longest, window = limits.context_length, facts.traits.sliding_window
    bounds = Bounds(measured.width, measured.batch, min(limits.prefill_chunk, limits.prefill_slice))
    params: dict[str, Param] = {"difference": float(f"{measured.difference:.2g}")}
    no_rows, no_windows = Reason("exact.off.rows", params), Reason("exact.off.windows", params)
    if window is not None and window < longest:
        # A ring is added up from its oldest row on or not, as the passes before have left it.
        bounds = replace(bounds, width=1, rows=1)
        no_rows = no_windows = Reason("exact.off.sliding")
    unbatchable, no_rewind = facts.unbatchable, facts.no_rewind
    if bounds.rows < ROWS[0]:
        unbatchable = unbatchable or no_rows
    if bounds.width < WINDOWS[0]:
        no_rewind = no_rewind or no_windows
    no_uneven = facts.no_uneven or Reason("exact.off.shared", {"rows": bounds.rows})
    facts = replace(facts, unbatchable=unbatchable, no_uneven=no_uneven, no_rewind=no_rewind)
    return facts, replace(limits, bounds=bounds)
