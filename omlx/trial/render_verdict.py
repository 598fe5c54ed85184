"""A verdict as a sentence, in any language that there is a catalog of.

The code's sentence has room for lists: `{gains}` becomes "code edits 1.8× and prose 1.1×".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omlx.catalog import sentence


def render_verdict(verdict: Mapping[str, Any], language: str = "en") -> str:
    """The sentence of a verdict as `report` gives it."""
    lists = {
        name: join_list([_change(each, language) for each in verdict[name]], language)
        for name in ("gains", "losses")
    }
    return sentence(verdict["code"], {"draft": verdict["draft"], **lists}, language)


def join_list(parts: Sequence[str], language: str = "en") -> str:
    """ "a", "a and b", "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    first = parts[0]
    for part in parts[1:-1]:
        first = sentence("trial.list.more", {"first": first, "next": part}, language)
    return sentence("trial.list.last", {"first": first, "last": parts[-1]}, language)


def _change(change: Mapping[str, Any], language: str) -> str:
    kind, speedup = change["kind"], change["speedup"]
    said = sentence(f"trial.kind.{kind}", {}, language)
    return sentence("trial.change", {"kind": said, "speedup": f"{speedup:.1f}"}, language)
