"""Template rendering: one Jinja environment per language. An undefined variable is an error.

Scripts of pages are one file that `make assets` has bundled, or the modules themselves.
`static/bundle` holds `ENTRY-HASH.js` and its source map, which contains the text of every module. A
bundle is used while these texts equal the files, so no page runs an outdated one. A change of a
file is seen when the next page is rendered.
"""

from __future__ import annotations

import json
import logging
from functools import cache, partial
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from omlx.catalog import data_dir, sentence

from . import formats
from .addresses import STATIC, model_path

BUNDLE: Final = "bundle"
"""The folder of bundles below `static/`. Its files are named by their content."""

ENTRIES: Final = {"app": "js/app.js", "chat": "js/chat/chat.js"}
"""Modules that a page loads, below `static/`: `chat` on the chat page, `app` on every other."""

log = logging.getLogger("omlx.admin")


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
    figures = (formats.ratio, formats.percent, formats.rate, formats.count, formats.context)
    bytes_ = (formats.parameters, formats.memory, formats.disk)
    others = (*bytes_, formats.clock, formats.moment, formats.timestamp)
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


class Scripts:
    """The scripts below a folder `static`."""

    def __init__(self, static: Path) -> None:
        self._static = static
        self._bundles: dict[Path, _Bundle] = {}
        self._logged: set[str] = set()

    def path(self, entry: str) -> str:
        """Return the path of the script of `entry` below `static`."""
        source_map = next((self._static / BUNDLE).glob(f"{entry}-*.js.map"), None)
        if source_map is None:
            return self._modules(entry, f"{BUNDLE}/")
        if source_map not in self._bundles:
            self._bundles[source_map] = _Bundle(source_map)
        changed = self._bundles[source_map].changed()
        if changed is not None:
            return self._modules(entry, changed)
        return f"{BUNDLE}/{source_map.stem}"

    def _modules(self, entry: str, reason: str) -> str:
        """Return the path of the module of `entry`. Logs once that `reason`, a file, differs."""
        if reason not in self._logged:
            self._logged.add(reason)
            fields = {"missing_or_changed": reason, "repair": "make assets"}
            log.info("the dashboard's scripts are loaded one by one", extra={"fields": fields})
        return ENTRIES[entry]


class _Bundle:
    """What a bundled script was made of, from its source map at `path`."""

    def __init__(self, path: Path) -> None:
        source_map = json.loads(path.read_bytes())
        sources = [(path.parent / name).resolve() for name in source_map["sources"]]
        self._texts = dict(zip(sources, source_map["sourcesContent"], strict=True))
        self._stamps: list[tuple[int, int] | None] = []
        self._changed: str | None = None

    def changed(self) -> str | None:
        """Return the name of a module that is not as it was bundled. Reads all if one is newer."""
        stamps = [_stamp(path) for path in self._texts]
        if stamps != self._stamps:
            self._stamps = stamps
            differing = (path.name for path, text in self._texts.items() if not _is(path, text))
            self._changed = next(differing, None)
        return self._changed


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes with the file at `path`; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
