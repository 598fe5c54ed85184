"""The table of tool calls in the documents is what the templates give."""

from __future__ import annotations

from tests.templates.document import PAGE, page


def test_the_table_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "write it: python -m tests.templates.document > table; mv table docs/tool-calls.md"
    )
