"""`omlx COMMAND` in this process, as one of its own would run it: no imports, no start; or by
`main`, in a home of its own.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TypeAlias

import pytest
from huggingface_hub import constants

from omlx.cli import ENVIRONMENT, _added
from omlx.cli.main import main
from tests.processes import environment

Capture: TypeAlias = pytest.CaptureFixture[str]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with nothing in it, for commands that run inside this process."""
    for name in [name for name in os.environ if name.startswith(("OMLX_", "HF_"))]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OMLX_HOME", str(tmp_path / ".omlx"))
    return tmp_path


def omlx(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the environment of a process with this home."""
    out, errors = StringIO(), StringIO()
    with (
        _environment(environment(home, **variables)),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        try:
            status = main(arguments)
        except SystemExit as ended:  # argparse has printed help or an error
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set all variables, and what the hub's library made of its own when it was imported."""
    before, library = dict(os.environ), {name: getattr(constants, name) for name in _HUB}
    _added.clear()
    os.environ.clear()
    os.environ |= variables
    cache = Path(variables["HOME"]) / ".cache/huggingface/hub"
    endpoint = variables.get("HF_ENDPOINT", constants.ENDPOINT)
    _set(
        ENDPOINT=endpoint,
        HUGGINGFACE_CO_URL_TEMPLATE=endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        HF_HUB_CACHE=variables.get("HF_HUB_CACHE", str(cache)),
        HF_HUB_DISABLE_XET="HF_HUB_DISABLE_XET" in variables,
        HF_HUB_OFFLINE="HF_HUB_OFFLINE" in variables,
    )
    try:
        yield
    finally:
        _set(**library)
        os.environ.clear()
        os.environ |= before
        _added.clear()


_HUB = (
    "ENDPOINT",
    "HUGGINGFACE_CO_URL_TEMPLATE",
    "HF_HUB_CACHE",
    "HF_HUB_DISABLE_XET",
    "HF_HUB_OFFLINE",
)


def _set(**values: object) -> None:
    for name, value in values.items():
        setattr(constants, name, value)
