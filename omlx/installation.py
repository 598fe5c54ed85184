"""Commands of this installation: the program's name for a shell, and packages to add."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PROGRAM: Final = "omlx"
_ROOT: Final = Path(__file__).resolve().parents[1]


def program_words() -> list[str]:
    """Return the start of a command line: `omlx` where PATH has it."""
    if shutil.which(PROGRAM) is not None:
        return [PROGRAM]
    script = Path(sys.executable).with_name(PROGRAM)
    return [str(script)] if script.is_file() else [sys.executable, "-m", PROGRAM]


def extra_command(extra: str) -> str:
    """Return a command line that adds an extra's packages to this installation.

    Never the bare name of this package: an index may have another package of that name.
    """
    install = _install_words()
    if (_ROOT / "pyproject.toml").is_file():
        return shlex.join([*install, "-e", f"{_ROOT}[{extra}]"])
    try:
        declared = requires(PROGRAM) or []
    except PackageNotFoundError:  # files without metadata
        declared = []
    marker = f'extra == "{extra}"'
    packages = [one.partition(";")[0].strip() for one in declared if marker in one]
    return shlex.join([*install, *packages])


def classes_command() -> str:
    """Return a command line that adds mlx-vlm without packages for training, sound and video.

    64 MB, where the extra `vision` is 722 MB.
    """
    install = shlex.join(_install_words())
    return f"{install} --no-deps mlx-vlm && {install} pillow requests"


def _install_words() -> list[str]:
    if find_spec("pip") is None:  # an environment made by uv
        return ["uv", "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install"]
