"""The depth of a JSON schema, with what its references lead to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from omlx.text.prune_nonterminating_schema import target

MAX_DEPTH: Final = 500
"""llguidance compiles by recursion, and its stack overflows at some 2,000 levels: that would end
the process."""
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})


def check_depth(schema: Any) -> None:
    """Raise ValueError if objects, lists and references are nested deeper than `MAX_DEPTH`."""
    heights: dict[int, int] = {}

    def height(node: Any, depth: int) -> int:
        """Return how many levels lie below a node, itself included; each is visited once."""
        if not isinstance(node, Mapping | list):
            return 0
        below = heights.get(id(node))
        if below is None:
            heights[id(node)] = below = 0  # where a cycle leads back to this node
            if depth < MAX_DEPTH:
                for part in _parts(schema, node):
                    below = max(below, height(part, depth + 1))
            heights[id(node)] = below = below + 1
        if depth + below > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        return below

    height(schema, 0)


def _parts(root: Any, node: Mapping[str, Any] | list[Any]) -> Iterator[Any]:
    if isinstance(node, list):
        yield from node
        return
    for name, part in node.items():
        if name == "$ref" and isinstance(part, str):
            yield target(root, part)
        elif name not in _DEFINITIONS:
            yield part
