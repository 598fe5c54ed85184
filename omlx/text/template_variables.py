"""Variables that some chat templates read instead of the usual ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

_FIREFUNCTION: Final = ("+ functions", "+ datetime")
"""Texts of Firefunction's template, which reads functions as a text, and the date."""


def with_further_variables(template: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables and those that this template needs too."""
    if not all(text in template for text in _FIREFUNCTION):
        return dict(variables)
    functions = [tool["function"] for tool in variables.get("tools") or ()]
    further = {
        "functions": json.dumps(functions, indent=4, ensure_ascii=False),
        "datetime": date.today().strftime("%b %d %Y"),
    }
    return {**further, **variables}
