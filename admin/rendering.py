"""Template rendering: one Jinja environment per language. An undefined variable is an error."""

from __future__ import annotations

from functools import cache, partial

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from omlx.catalog import data_dir, sentence

from . import formats
from .addresses import STATIC, model_path
from .scripts import Scripts


def render(template: str, language: str, **context: object) -> str:
    """Render the template at a path below `templates/`."""
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
        "static": _static,
        "script": lambda entry: _static(_scripts().path(entry)),
        "language_name": partial(sentence, "ui.language.name", {}),
        "model_path": model_path,
        "zip": zip,
    }
    figures = (
        formats.ratio,
        formats.percent,
        formats.rate,
        formats.count,
        formats.context,
        formats.parameters,
    )
    others = (formats.memory, formats.disk, formats.clock, formats.moment, formats.timestamp)
    environment.filters |= {filter_.__name__: filter_ for filter_ in (*figures, *others)}
    for filter_ in (formats.duration, formats.elapsed):
        environment.filters[filter_.__name__] = partial(filter_, language=language)
    return environment


@cache
def _scripts() -> Scripts:
    return Scripts(data_dir("static"))


def _static(path: str) -> str:
    return f"{STATIC}/{path}"


def _translate(language: str, key: str, /, **params: object) -> str:
    """`t('ui.nav.models')`, `t(reason.code, **reason.params)`"""
    return sentence(key, params, language)
