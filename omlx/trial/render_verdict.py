"""A verdict as a sentence, in every language that has a catalog.

The sentence of its code has room for lists: `{gains}` becomes "code edits 1.8× (1.7–1.9) and prose
1.1× (1.1–1.2)".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omlx.catalog import sentence


def render_verdict(verdict: Mapping[str, Any], language: str = "en") -> str:
    """Return the sentence of a verdict in the form that `report` gives it."""
    gains = join_list([_change(change, language) for change in verdict["gains"]], language)
    losses = join_list([_change(change, language) for change in verdict["losses"]], language)
    params = {"draft": verdict["draft"], "gains": gains, "losses": losses}
    return sentence(verdict["code"], params, language)


def join_list(parts: Sequence[str], language: str = "en") -> str:
    """Return "a", "a and b", or "a, b and c" in that language."""
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
