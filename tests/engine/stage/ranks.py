"""Runs one scenario in several processes, connected by mlx's ring backend on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE_S = 300


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def run_ranks(module: str, size: int, arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run `python -m module arguments` as ranks 0 to size - 1; return the JSON object that rank 0
    prints last. Every process has ended afterwards.
    """
    *ports, control = free_ports(size + 1)
    hostfile = folder / "ring.json"
    hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
    shared = {"MLX_HOSTFILE": str(hostfile), "OMLX_TEST_CONTROL": str(control)}
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
        outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert not any(codes), f"exit codes {codes}\n" + "\n".join(err for _, err in outputs)
    result: dict[str, Any] = json.loads(outputs[0][0].strip().splitlines()[-1])
    return result
