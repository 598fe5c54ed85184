"""Generator of docs/settings.md: `python -m lab.settings_page > docs/settings.md`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from omlx.catalog import sentence
from omlx.cli.main import run_process
from omlx.settings.schema import Group, Scope, Setting, table
from omlx.settings.types import Form

HEAD = """# Settings

Precedence, from the highest: request, [profile](profiles.md), flag of `omlx serve`, environment
variable, settings of the model, settings of all models, the model's [package](packages.md),
built-in default. `omlx config list` shows every value and its source.

`--hosts`, `--split`, `--stage-layers` and `--stage-timeout` of `omlx serve` are flags only:
[stages.md](stages.md) describes them.

Two files in the home folder (`OMLX_HOME`, else `~/.omlx`) store settings: `config.json` for all
models, `models.json` for each model and its profiles. `omlx config set NAME VALUE` writes them,
with `--model ID` for one model, and with `--profile NAME` for a profile of it; `omlx config unset
NAME` removes a value, so that the next source applies. By hand:

    config.json   {"format": "omlx-config/1", "defaults": {"speculative": {"draft_max": 8}}}
    models.json   {"format": "omlx-config/1",
                   "models": {"org/name": {"speculative": {"speculation": "ngram"},
                                           "profiles": {"fast": {"sampling": {"top_k": 20}}}}}}

A key that is not in the tables below is refused by its name. A file without that `format` belongs
to another program: it is ignored and never changed. A marked file that cannot be parsed is renamed
to `*.corrupt-<time>` when a server starts, and before settings are written in its place; the rename
is reported.

A running server applies changes of these files within seconds: at once, or when a model is idle.
Other settings, and the API key, apply at the next start; `omlx config set` and `unset` report
which. An invalid file prevents a start. A running server keeps its last valid content, reports the
error (`warnings` in the [status](api.md) of a model, the dashboard, the log), and reads the file
again once it is repaired.

The last columns: the key in `config.json`, and whether a model (M), a profile (P) or a request (R)
may have its own value. Generated from `omlx/settings/schema.py` by `make docs`.
"""


def document() -> str:
    return "\n".join([HEAD, *(_chapter(group) for group in Group)])


def _chapter(group: Group) -> str:
    rows = [_row(setting) for setting in table().values() if setting.meta.group is group]
    head = ["| flag | variable | value | default | | key | |", "|---|---|---|---|---|---|---|"]
    return "\n".join([f"## {sentence(f'settings.group.{group}', {})}", "", *head, *rows, ""])


def _row(setting: Setting) -> str:
    cells = [
        _code(setting.flag, setting, Scope.CLI),
        _code(setting.variable, setting, Scope.ENVIRONMENT),
        _values(setting),
        _default(setting),
        setting.help,
        _code(setting.path, setting, Scope.GLOBAL),
        _own(setting),
    ]
    return f"| {' | '.join(cells)} |"


def _code(name: str, setting: Setting, scope: Scope) -> str:
    if not setting.allowed_in(scope):
        return ""
    return f"`{name}`"


def _own(setting: Setting) -> str:
    marks = {Scope.MODEL: "M", Scope.PROFILE: "P", Scope.REQUEST: "R"}
    return " ".join(mark for scope, mark in marks.items() if setting.allowed_in(scope))


def _values(setting: Setting) -> str:
    meta = setting.meta
    match setting.form:
        case Form.CHOICE:
            return " ".join(f"`{choice}`" for choice in setting.choices)
        case Form.SWITCH:
            return "on, off"
        case Form.OBJECT:
            return "a JSON object"
        case Form.SIZE:
            off = ", or `off`" if meta.metavar.endswith("|off") else ""
            return f"a size such as `512MB`{off}"
        case Form.NUMBER:
            return f"{meta.low:,} to {meta.high:,}"
        case Form.LINES | Form.MAP:
            return f"{meta.metavar}, repeatable"
        case _:
            return meta.metavar


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if setting.form is Form.SIZE and isinstance(value, int):
        return f"{value >> 20}MB"
    if isinstance(value, Path):
        return f"`{str(value).replace(os.path.expanduser('~'), '~')}`"
    return f"`{value}`"


def main() -> int:
    sys.stdout.write(document())
    return 0


if __name__ == "__main__":
    run_process(main)
