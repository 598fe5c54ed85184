"""Sentences for codes, from `locales/*.json`: one flat object a language, `code -> template` with `{name}` fields.

A code without an entry is shown as itself with its parameters, so that a missing sentence is seen, never an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def data_dir(name: str) -> Path:
    """The folder of shipped data called `name`: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


@cache
def catalog(language: str = "en") -> Mapping[str, str]:
    entries: dict[str, str] = json.loads((data_dir("locales") / f"{language}.json").read_text(encoding="utf-8"))
    return entries


def sentence(code: str, params: Mapping[str, object], language: str = "en") -> str:
    """The sentence for `code` with its parameters filled in."""
    template = catalog(language).get(code)
    if template is None:
        return " ".join([code, *(f"{key}={value}" for key, value in params.items())])
    return template.format_map(params)
