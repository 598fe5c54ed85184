"""This server passes every check of `python -m lab.conformance`."""

from __future__ import annotations

import json

import pytest

from lab.conformance.__main__ import main
from lab.conformance.checks import CHECKS
from omlx.settings.schema import Settings
from tests.server.running import DRAFT, HYBRID, TARGET, omlx


@pytest.mark.parametrize("model", [TARGET, pytest.param(HYBRID, marks=pytest.mark.slow)])
def test_this_server_passes_every_check(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a draft model: drafts, batches and cached prefixes change nothing."""
    with omlx(Settings(draft_model=DRAFT)) as running:
        status = main([running.url, "--model", model, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [check for check in record["checks"] if check["outcome"] != "passed"] == []
    assert status == 0
    assert record["model"] == model
    assert [check["name"] for check in record["checks"]] == [check.name for check in CHECKS]
