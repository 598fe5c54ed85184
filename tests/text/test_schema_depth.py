from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from omlx.text.schema import MAX_DEPTH, check_depth


def lists(depth: int) -> Any:
    nested: Any = {}
    for _ in range(depth):
        nested = [nested]
    return nested


def test_depth_counts_levels_along_references() -> None:
    half = MAX_DEPTH // 2
    definitions = {"deep": lists(half - 3)}
    check_depth({"items": {"$ref": "#/$defs/deep"}, "$defs": definitions})
    with pytest.raises(ValueError, match="deeper"):
        check_depth({"items": [lists(half)], "allOf": lists(MAX_DEPTH)})


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_references_does_not_matter(order: int) -> None:
    names = [f"d{i}" for i in range(MAX_DEPTH)]
    definitions: dict[str, Any] = {
        name: {"items": {"$ref": f"#/$defs/{following}"}} for name, following in pairwise(names)
    }
    options = [{"$ref": f"#/$defs/{name}"} for name in names[::order]]
    with pytest.raises(ValueError, match="deeper"):
        check_depth({"anyOf": options, "$defs": {**definitions, names[-1]: {}}})


def test_recursive_schemas_have_a_depth() -> None:
    node = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    check_depth(node)
    check_depth({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})
