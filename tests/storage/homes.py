"""What a home has on record, read and altered behind the back of its stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omlx.storage import use


def rows(home: Path, query: str, *values: object) -> list[tuple[Any, ...]]:
    return use(home, lambda db: db.execute(query, values).fetchall())


def measured(home: Path, kind: str) -> dict[str, Any]:
    """Costs, trials or benchmarks by name."""
    query = "select name, content from measurements where kind = ? order by name"
    return {name: json.loads(content) for name, content in rows(home, query, kind)}


def damage(home: Path, kind: str, content: str) -> None:
    """Have every measurement of a kind be this text."""
    rows(home, "update measurements set content = ? where kind = ?", content, kind)


def receipt(home: Path, id: str) -> dict[str, Any]:
    """The kept answer and its receipt."""
    ((content,),) = rows(home, "select content from receipts where id = ?", id)
    kept: dict[str, Any] = json.loads(content)
    return kept


def alter(home: Path, id: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a kept answer, or its receipt."""
    content = receipt(home, id)
    change(content)
    rows(home, "update receipts set content = ? where id = ?", json.dumps(content), id)


def another_token(content: dict[str, Any]) -> None:
    """A change for `alter`: token 5 of the answer."""
    content["answer"]["answer"][5] += 1
