"""Runs one scenario in several processes, connected by mlx's ring backend on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from omlx.cli.stage.processes import reserve_port

PATIENCE_S = 300
STARTING_S = 120
"""Until a rank watches itself."""
OTHERS_S = 10
"""That ranks may still run after one has failed: to show their stacks."""
PATIENCE = "OMLX_TEST_PATIENCE_S"
"""The variable that tells a rank after how many seconds to show its stacks and end."""


class Hung(AssertionError):
    """Ranks that did not end; the text has the stack of each thread."""


def run_ranks(
    module: str, size: int, arguments: Sequence[str], folder: Path, patience_s: float = PATIENCE_S
) -> dict[str, Any]:
    """Run `python -m module arguments` as ranks 0 to size - 1; return the JSON object that rank 0
    prints last. Every process has ended afterwards.

    Raises Hung for ranks that run for more than `patience_s`, which each of them watches itself.
    """
    with ExitStack() as held:
        reserved = [held.enter_context(reserve_port("127.0.0.1")) for _ in range(size + 1)]
        *ports, control = [one.getsockname()[1] for one in reserved]
        return _run(module, arguments, folder, ports, control, patience_s)


def _run(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    ports: Sequence[int],
    control: int,
    patience_s: float,
) -> dict[str, Any]:
    hostfile = folder / "ring.json"
    hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
    shared = {
        "MLX_HOSTFILE": str(hostfile),
        "OMLX_TEST_CONTROL": str(control),
        PATIENCE: str(patience_s),
    }
    texts: list[str] = []
    with ExitStack() as opened:
        files = [opened.enter_context(TemporaryFile("w+")) for _ in range(2 * len(ports))]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env={**os.environ, **shared, "MLX_RANK": str(rank)},
                stdout=files[rank],
                stderr=files[len(ports) + rank],
            )
            for rank in range(len(ports))
        ]
        try:
            _wait(processes, patience_s + STARTING_S)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for file in files:
            file.seek(0)
            texts.append(file.read())
    output, errors = texts[0], "\n".join(texts[len(ports) :])
    codes = [process.returncode for process in processes]
    if "Timeout (" in errors:  # as faulthandler begins
        raise Hung(errors)
    assert not any(codes), f"exit codes {codes}\n{errors}"
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until all have ended, or for `seconds`; for `OTHERS_S` once one has failed."""
    until = time.monotonic() + seconds
    failed = False
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        if not failed and any(process.returncode for process in processes):
            failed, until = True, min(until, time.monotonic() + OTHERS_S)
        time.sleep(0.02)  # several processes have no common event
