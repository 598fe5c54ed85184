"""`omlx pull` on a terminal: one bar over all files, with speed and time left."""

from __future__ import annotations

from pathlib import Path

from omlx.models.catalog.discovery import BUNDLED
from tests.cli.terminal import terminal
from tests.models.hub import Hub, running
from tests.processes import environment

MODEL = "org/model"


def test_a_download_shows_one_bar_over_all_its_files(tmp_path: Path) -> None:
    with running(Hub()) as hub:
        hub.add(MODEL, BUNDLED / "omlx-demo/target")
        hub.stall["mtp.safetensors"] = 1000  # until the bar has been drawn
        environ = environment(tmp_path, **hub.environment(tmp_path / "hub"))
        with terminal(environ, "pull", MODEL) as screen:
            drawn = screen.wait_for("B/s]")
            assert f"{MODEL}:" in drawn
            assert "<" in drawn.rpartition("[")[2], "time taken and time left"
            assert "safetensors" not in screen.text
