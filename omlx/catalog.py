"""Sentences for codes, from `locales/*.json`: one flat object a language, `code -> template` with
`{name}` fields.

What a language does not have yet is said in English. A code without an entry is shown as itself
with its parameters, so that a missing sentence is seen, never an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = "en"


def data_dir(name: str) -> Path:
    """The folder of shipped data called `name`: inside the package in a wheel, beside it in a
    checkout.
    """
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


@cache
def languages() -> tuple[str, ...]:
    """Those there is a catalog for, English first."""
    found = sorted(path.stem for path in data_dir("locales").glob("*.json"))
    return tuple(sorted(found, key=lambda language: language != SOURCE))


@cache
def catalog(language: str = SOURCE) -> Mapping[str, str]:
    """Raises FileNotFoundError for a language that is not among `languages`."""
    entries: dict[str, str] = json.loads(
        (data_dir("locales") / f"{language}.json").read_text(encoding="utf-8")
    )
    return entries if language == SOURCE else {**catalog(), **entries}


def sentence(code: str, params: Mapping[str, object], language: str = SOURCE) -> str:
    """The sentence for `code` with its parameters filled in."""
    template = catalog(language).get(code)
    if template is None:
        return " ".join([code, *(f"{key}={value}" for key, value in params.items())])
    return template.format_map(params)
