"""Remove from a JSON schema what makes a compiler refuse it, and say what that was.

For requests that do not insist on every keyword (`strict`): patterns that the grammar cannot
express, such as those with look-ahead, references to other documents, keywords beside a circular
reference, and constants and bounds that would be rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from omlx.text.exact_integers import rounded
from omlx.text.map_schemas import map_schemas
from omlx.text.prune_nonterminating_schema import references, target

MAX_PATTERNS: Final = 64
"""Different patterns of one schema that are tried: each costs up to 0.1 CPU seconds."""
MAX_REFERENCES: Final = 256
"""Different references: which of them are circular takes time by the square of their number."""
_SHOWN: Final = 80
"""Characters of a pattern or reference in a description."""


def relax(schema: Any, pattern_error: Callable[[str], str | None]) -> tuple[Any, list[str]]:
    """Return the schema without what cannot be enforced, and a description of each removed part.

    `pattern_error` says what is wrong with a pattern, if anything. Raises ValueError for too many
    patterns or references, and for a schema that is nested too deep.
    """
    tried = cache(_limited(pattern_error))
    removed: list[str] = []

    def change(part: dict[str, Any]) -> dict[str, Any]:
        if isinstance(part.get("pattern"), str) and _note(part["pattern"]):
            del part["pattern"]
        named = part.get("patternProperties")
        if isinstance(named, dict):
            part["patternProperties"] = {
                name: value for name, value in named.items() if not _note(name)
            }
        removed.extend(_removed_numbers(part))
        reference = part.get("$ref")
        if isinstance(reference, str):
            return _relaxed_reference(part, reference, circular, removed)
        return part

    def _note(pattern: str) -> bool:
        if (error := tried(pattern)) is not None:
            removed.append(f"pattern '{pattern[:_SHOWN]}' ({error})")
        return error is not None

    try:
        circular = _circular(schema)
        relaxed = map_schemas(schema, change)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return relaxed, list(dict.fromkeys(removed))


def _limited(pattern_error: Callable[[str], str | None]) -> Callable[[str], str | None]:
    count = 0

    def limited(pattern: str) -> str | None:
        nonlocal count
        count += 1
        if count > MAX_PATTERNS:
            raise ValueError(f"it has more than {MAX_PATTERNS} patterns")
        return pattern_error(pattern)

    return limited


def _removed_numbers(part: dict[str, Any]) -> list[str]:
    """Remove the constants and bounds of a schema that would be rounded; describe them."""
    described = []
    for key, numbers in rounded(part).items():
        del part[key]
        described += [f"{key} {str(number)[:_SHOWN]} (would be rounded)" for number in numbers]
    return described


def _relaxed_reference(
    part: dict[str, Any], reference: str, circular: set[str], removed: list[str]
) -> dict[str, Any]:
    """A schema with a reference, without it or without its other keywords."""
    if not reference.startswith("#"):
        removed.append(f"$ref '{reference[:_SHOWN]}'")
        del part["$ref"]
    elif reference in circular and len(part) > 1 and "$defs" not in part:
        removed.append(f"keywords beside $ref '{reference[:_SHOWN]}'")
        return {"$ref": reference}
    return part


def _circular(schema: Any) -> set[str]:
    """Return the references whose targets lead back to themselves."""
    names = set(references(schema))
    if len(names) > MAX_REFERENCES:
        raise ValueError(f"it has more than {MAX_REFERENCES} references")
    steps = {name: set(references(target(schema, name))) for name in names}
    circular = set()
    for name in steps:
        reached, waiting = set[str](), [name]
        while waiting:
            new = steps.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        if name in reached:
            circular.add(name)
    return circular
