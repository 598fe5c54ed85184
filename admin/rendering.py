"""Templates become pages: one Jinja environment a language, in which `t` is that language's catalog.

A template that uses what it was not given is an error, never an empty place.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from omlx.catalog import data_dir, sentence

from . import formats

STATIC: Final = "/admin/static"


def render(template: str, language: str, **context: object) -> str:
    """`template` is a path below `templates/`."""
    return _environment(language).get_template(template).render(context)


@cache
def _environment(language: str) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(data_dir("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "t": partial(_translate, language),
        "static": lambda path: f"{STATIC}/{path}",
        "language_name": partial(sentence, "ui.language.name", {}),
        "model_path": formats.model_path,
        "zip": zip,
    }
    figures = (formats.size, formats.ratio, formats.percent, formats.rate, formats.count)
    written = (*figures, formats.clock, formats.duration, formats.moment)
    environment.filters |= {each.__name__: each for each in written}
    return environment


def _translate(language: str, key: str, /, **params: object) -> str:
    """`t('ui.nav.models')`, `t(reason.code, **reason.params)`"""
    return sentence(key, params, language)
