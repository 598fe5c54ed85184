"""CPU time of a process and of those that it has started."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path


def idle_shares(pid: int, seconds: float) -> dict[str, float]:
    """Return, by command (`serve`, `stage`), the share of a core that the children of `pid` use."""
    before = _children(pid)
    time.sleep(seconds)  # what is measured is that nothing happens
    after = _children(pid)
    return {
        command: (used - before[command]) / seconds
        for command, used in after.items()
        if command in before
    }


def _children(pid: int) -> dict[str, float]:
    """CPU seconds of each child, by its command of omlx."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,time=,args="], capture_output=True, text=True, check=True
    )
    used = {}
    for line in listed.stdout.splitlines():
        child, parent, spent, *arguments = line.split()
        if parent == str(pid):
            command = "stage" if "stage" in arguments else "serve"
            used[command] = _exact_seconds(int(child), spent)
    return used


def _exact_seconds(pid: int, spent: str) -> float:
    """CPU seconds: by /proc, whose ticks are finer than those of Linux's `ps`, or by `spent`."""
    status = Path(f"/proc/{pid}/stat")
    if status.exists():
        fields = status.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    seconds = 0.0
    for part in spent.replace("-", ":").split(":"):  # [[days-]hours:]minutes:seconds
        seconds = seconds * 60 + float(part)
    return seconds
