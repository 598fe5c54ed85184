"""docs/settings.md, from the table: `python -m omlx.settings.document > docs/settings.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from omlx.catalog import sentence
from omlx.settings.schema import Group, Setting, table

HEAD = """# Settings

Each can be given as a flag of `omlx serve` or as a variable of the environment; the flag wins. Generated from
`omlx/settings/schema.py` by `make docs`.
"""


def document() -> str:
    """The whole page, ending in a newline."""
    return "\n".join([HEAD, *(_chapter(group) for group in Group)])


def _chapter(group: Group) -> str:
    rows = [_row(setting) for setting in table().values() if setting.meta.group is group]
    head = ["| flag | variable | value | default | |", "|---|---|---|---|---|"]
    return "\n".join([f"## {sentence(f'settings.group.{group}', {})}", "", *head, *rows, ""])


def _row(setting: Setting) -> str:
    cells = [f"`{setting.flag}`", f"`{setting.variable}`", _values(setting), _default(setting), setting.help]
    return f"| {' | '.join(cells)} |"


def _values(setting: Setting) -> str:
    if setting.choices:
        return " ".join(f"`{choice}`" for choice in setting.choices)
    if setting.kind is bool:
        return "on, off"
    if setting.meta.is_bytes:
        return "a size such as `512MB`"
    if setting.kind in (int, float):
        return f"{setting.meta.low:,} to {setting.meta.high:,}"
    return f"{setting.meta.metavar}{', repeatable' if setting.many else ''}"


def _default(setting: Setting) -> str:
    value = setting.default
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if setting.meta.is_bytes and isinstance(value, int):
        return f"{value >> 20}MB"
    if isinstance(value, Path):
        return f"`~/{value.relative_to(Path.home())}`"
    return f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(document())
