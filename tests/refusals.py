"""An error that a test expects: its class, its code, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def refused(
    kind: type[Exception] | tuple[type[Exception], ...],
    code: str,
    says: str = "",
    **params: object,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Prove that a block raises an error of this class and code, with these parameters and others,
    whose sentence has a text.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    found = error.code, {name: error.params.get(name) for name in params}
    assert found == (code, params), found
    assert not says or says in error.message, error.message
