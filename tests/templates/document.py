"""The table of docs/tool-calls.md, from the fetched templates: `python -m tests.templates.document`
prints the page with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.text.calls.markup import call_format
from omlx.text.reasoning import channel_markers, message_channels, reasoning_format
from tests.templates.fetched import ROOT, TEMPLATES, tokenizer

PAGE: Final[Path] = ROOT / "docs/tool-calls.md"
HEADER: Final = "| template | a call begins with | reasoning |\n|---|---|---|\n"
END: Final = "\n\n**Functions in templates.**"


def table() -> str:
    """Return a row for every group of templates whose outputs are parsed alike."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in TEMPLATES:
        model = tokenizer(name)
        rows.setdefault((_calls(model), _reasoning(model)), []).append(name)
    lines = [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items()]
    return HEADER + "\n".join(lines)


def page() -> str:
    """Return the page with a table that is up to date."""
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(HEADER)
    return text[:start] + table() + text[text.index(END, start) :]


def _calls(model: TokenizerWrapper) -> str:
    form = call_format(model)
    if form is None:
        return "no tools in the template"
    begins = _code(form.start)
    if form.leading:
        begins = f"the function's name, or {begins}"
    if form.leading.startswith(r"\{"):
        begins = f"`{{` at the start of the answer, or {_code(form.start)}"
    return begins


def _reasoning(model: TokenizerWrapper) -> str:
    if message_channels(model) is not None:
        markers = channel_markers(model)
        return _code(markers[0]) if markers is not None else "channels"
    form = reasoning_format(model)
    return _code(form.opens) if form is not None and form.opens else ""


def _code(text: str) -> str:
    text = text.replace("\n", "\\n").replace("|", "\\|")
    return f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(page())
