"""Runs one scenario in several processes, connected by mlx's ring backend on loopback."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 300
STARTING_S = 120
"""Until a rank watches itself."""
PATIENCE = "OMLX_TEST_PATIENCE_S"
"""The variable that tells a rank after how many seconds to show its stacks and end."""


def free_ports(count: int) -> list[int]:
    """Ports below those that the system gives to others before a rank listens there; those of each
    worker of pytest are apart.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    numbers = list(range(20_000 + 500 * (worker % 20), 20_500 + 500 * (worker % 20)))
    random.SystemRandom().shuffle(numbers)
    ports: list[int] = []
    while len(ports) < count:
        with suppress(OSError), socket.create_server(("127.0.0.1", numbers[-1])):
            ports.append(numbers[-1])
        numbers.pop()
    return ports


class Hung(AssertionError):
    """Ranks that did not end; the text has the stack of each thread."""


def run_ranks(
    module: str,
    size: int,
    arguments: Sequence[str],
    folder: Path,
    patience_s: float = PATIENCE_S,
) -> dict[str, Any]:
    """Run `python -m module arguments` as ranks 0 to size - 1; return the JSON object that rank 0
    prints last. Every process has ended afterwards.

    Raises Hung for ranks that run for more than `patience_s`, which each of them watches itself.
    """
    *ports, control = free_ports(size + 1)
    hostfile = folder / "ring.json"
    hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
    shared = {
        "MLX_HOSTFILE": str(hostfile),
        "OMLX_TEST_CONTROL": str(control),
        PATIENCE: str(patience_s),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **shared, "MLX_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=patience_s + STARTING_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    errors = "\n".join(error for _, error in outputs)
    if "Timeout (" in errors:  # as faulthandler begins
        raise Hung(errors)
    assert not any(codes), f"exit codes {codes}\n{errors}"
    result: dict[str, Any] = json.loads(outputs[0][0].strip().splitlines()[-1])
    return result
