"""docs/settings.md, from the table: `python -m omlx.settings.document > docs/settings.md`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from omlx.catalog import sentence
from omlx.settings.schema import Group, Scope, Setting, table

HEAD = """# Settings

Who sets a value, from the one that wins to the last: a request, a flag of `omlx serve`, a variable of the environment,
the settings of the model, those of all models, the model's [package](packages.md), the built-in default.
`omlx config list` shows every value and who set it.

Two files in the home folder (`OMLX_HOME`, else `~/.omlx`) keep settings: `config.json` for all models, `models.json`
for each. `omlx config set NAME VALUE` writes them, with `--model ID` for one model; `omlx config unset NAME` lets the
next source decide again. By hand:

    config.json   {"format": "omlx-config/1", "defaults": {"speculative": {"draft_max": 8}}}
    models.json   {"format": "omlx-config/1", "models": {"org/name": {"speculative": {"speculation": "ngram"}}}}

A key that is not in the tables below is refused by its name. A file without that `format` belongs to another program:
it is left alone and does not count. One that has it and cannot be parsed is kept as
`*.corrupt-<time>` when a server starts, and when settings are to be written in its place; that is said.

A server that runs takes up what is written into them, whoever writes it, within some seconds: at once, or at the next
moment at which a model has no requests. The rest, and the API key, it takes up when it starts; `omlx config set` and
`unset` say which those are. A file in which something is wrong stops a start, and nothing else: a server that runs
goes on with what it last read, says what is wrong and where (`warnings` in the [status](api.md) of a model, the
dashboard, the log), and takes the file up once it is right.

The last columns: where `config.json` keeps a setting, and whether a model (M) or a request (R) may have its own.
Generated from `omlx/settings/schema.py` by `make docs`.
"""


def document() -> str:
    """The whole page, ending in a newline."""
    return "\n".join([HEAD, *(_chapter(group) for group in Group)])


def _chapter(group: Group) -> str:
    rows = [_row(setting) for setting in table().values() if setting.meta.group is group]
    head = ["| flag | variable | value | default | | kept as | |", "|---|---|---|---|---|---|---|"]
    return "\n".join([f"## {sentence(f'settings.group.{group}', {})}", "", *head, *rows, ""])


def _row(setting: Setting) -> str:
    flag = f"`{setting.flag}`" if setting.allowed_in(Scope.CLI) else ""
    variable = f"`{setting.variable}`" if setting.allowed_in(Scope.ENVIRONMENT) else ""
    cells = [flag, variable, _values(setting), _default(setting), setting.help]
    cells += [f"`{setting.path}`" if setting.allowed_in(Scope.GLOBAL) else "", _own(setting)]
    return f"| {' | '.join(cells)} |"


def _own(setting: Setting) -> str:
    marks = {Scope.MODEL: "M", Scope.REQUEST: "R"}
    return " ".join(mark for scope, mark in marks.items() if setting.allowed_in(scope))


def _values(setting: Setting) -> str:
    if setting.choices:
        return " ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is bool:
        return "on, off"
    if setting.kind is dict:
        return "a JSON object"
    if setting.meta.is_bytes:
        return "a size such as `512MB`"
    if setting.kind in (int, float):
        return f"{setting.meta.low:,} to {setting.meta.high:,}"
    return f"{setting.meta.metavar}{', repeatable' if setting.repeatable else ''}"


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if setting.meta.is_bytes and isinstance(value, int):
        return f"{value >> 20}MB"
    if isinstance(value, Path):
        return f"`{str(value).replace(os.path.expanduser('~'), '~')}`"
    return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(document())
