"""A server whose device takes no more work: it ends with status 3, and the next process continues
the answers that were recorded.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from lab.soak.faults import Restarter, Tally, ask, supervised
from tests.cli.inside import omlx
from tests.engine.faults import IGNORED, INTERACTIVITY
from tests.server.running import PATIENCE_S, TARGET

BODY = {
    "model": TARGET,
    "messages": [{"role": "user", "content": "Count to 30 please."}],
    "max_tokens": 80,
    "seed": 3,
    "stream": True,
    "speculation": "off",
}
CHAT = "/v1/chat/completions"
QUIET = ("--no-calibrate",)
"""Passes of a calibration would be counted, too."""


def test_an_answer_outlives_a_device_that_ignores_work(tmp_path: Path) -> None:
    lost = {"site": "decode", "nth": 25, "text": IGNORED, "times": 1 << 30}
    server = Restarter(tmp_path, lambda number: lost if number == 0 else None, QUIET)
    tally = Tally()
    with supervised(server), httpx.Client(timeout=PATIENCE_S) as client:
        answer, code = ask(client, server.url, CHAT, BODY, "one", tally)
        again, _ = ask(client, server.url, CHAT, BODY, "undisturbed", tally)
        assert code is None
        assert answer == again
        assert len(server.statuses) == 1
    assert server.statuses == [3, 0]
    assert sum(tally.counts.values()) > 0, "the client was cut off"
    doctor = omlx(tmp_path, "doctor", "--home", str(tmp_path / "omlx"))
    assert "submissions_ignored · " + IGNORED in doctor.stdout


@pytest.mark.slow
def test_a_pass_that_fails_once_is_computed_again(tmp_path: Path) -> None:
    once = {"site": "decode", "nth": 3, "text": INTERACTIVITY}
    server = Restarter(tmp_path, lambda number: once, QUIET)
    tally = Tally()
    with supervised(server), httpx.Client(timeout=PATIENCE_S) as client:
        answer = client.post(server.url + CHAT, json=BODY | {"stream": False}).json()
        again, _ = ask(client, server.url, CHAT, BODY, "again", tally)
        health = client.get(f"{server.url}/health").json()
        metrics = client.get(f"{server.url}/metrics").text
    message = answer["choices"][0]["message"]
    assert (message.get("reasoning_content") or "") + (message["content"] or "") == again
    assert answer["timings"]["restarts"] == 1
    assert health["status"] == "ok"
    assert health["device_error"]["kind"] == "impacting_interactivity"
    assert 'omlx_device_errors_total{kind="impacting_interactivity"} 1.0' in metrics
    assert server.statuses == [0]
