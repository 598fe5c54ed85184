from __future__ import annotations

import pytest

from omlx.server.request import stream as event_dispatcher


@pytest.fixture(autouse=True)
def _many_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all tokens of so small a model may come in one."""
    monkeypatch.setattr(event_dispatcher, "DELIVERY_INTERVAL_S", 0.0)
