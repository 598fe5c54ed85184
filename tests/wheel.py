"""The wheel of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_BUILD: Final = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"


def build_wheel(work: Path) -> Path:
    """Build a wheel from a copy of the sources below `work`, as `make wheel` does."""
    source = work / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("omlx", "admin", "locales", "static", "templates"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    made = subprocess.run(
        [sys.executable, "-c", _BUILD], cwd=source, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    (built,) = source.glob("*.whl")
    return built
