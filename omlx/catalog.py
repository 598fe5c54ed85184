"""Catalog of sentences by code, from `locales/*.json`: one flat object per language.

Entries missing in a language are taken from English. A code without an entry is returned with its
parameters: a missing sentence is visible and raises no exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = "en"


def data_dir(name: str) -> Path:
    """Return the folder of shipped data: in a wheel inside the package, in a checkout beside it."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


@cache
def languages() -> tuple[str, ...]:
    names = (path.stem for path in data_dir("locales").glob("*.json"))
    return tuple(sorted(names, key=lambda name: (name != SOURCE, name)))


@cache
def catalog(language: str = SOURCE) -> Mapping[str, str]:
    """Return the entries of a language. Raises FileNotFoundError for an unknown language."""
    entries: dict[str, str] = json.loads(
        (data_dir("locales") / f"{language}.json").read_text(encoding="utf-8")
    )
    return entries if language == SOURCE else {**catalog(), **entries}


def sentence(code: str, params: Mapping[str, object], language: str = SOURCE) -> str:
    template = catalog(language).get(code)
    if template is None:
        return " ".join([code, *(f"{key}={value}" for key, value in params.items())])
    return template.format_map(params)
