"""The lab's tests run as those of `tests` do: sockets, certificates, time-outs, the extra."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.conftest import (  # noqa: F401 — pytest finds them by their names
    one_authority,
    patient_clients,
    pytest_collection_modifyitems,
    quiet_machine,
)


@pytest.fixture(scope="module", autouse=True)
def signals() -> Iterator[None]:
    """Keep the handler of SIGTERM, which commands change."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
