"""`omlx pull FILE.gguf` and `omlx pull smollm2`: a converted model in omlx's home."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.gguf.convert import convert
from omlx.models.gguf.package import ANSWER, MODEL, QUESTION, package_file
from omlx.models.pool.load_weights import load
from omlx.settings.schema import Settings

_PLACE: Final = "home"
_SUFFIX: Final = ".gguf"
_OTHER: Final = re.compile(r"[^\w .+()-]")
"""Characters that the name of a model in a reference cannot have."""
_ANSWER_TOKENS: Final = 16


def is_gguf(target: str) -> bool:
    """Return whether `omlx pull` is asked for a file, or for the model of the package."""
    return target == MODEL or target.lower().endswith(_SUFFIX)


def pull_gguf(target: str, settings: Settings, begins: Callable[[], None]) -> ModelEntry:
    """Return the model that a file was converted to, now or before. Raises ModelError, Conflict.

    `begins` is called before a conversion.
    """
    if target != MODEL:
        file = Path(target).expanduser()
        name = _OTHER.sub("-", file.name[: -len(_SUFFIX)]).lstrip("-. ") or "model"
        return _converted(file, _entry(name, settings), begins)
    entry = _entry(MODEL, settings)
    if entry.usable:
        return entry
    begins()
    with package_file() as file:
        return _converted(file, entry, lambda: None, QUESTION, ANSWER)


def _converted(
    file: Path,
    entry: ModelEntry,
    begins: Callable[[], None],
    question: str | None = None,
    answer: str | None = None,
) -> ModelEntry:
    if not entry.path.exists():
        begins()
    convert(file, entry.path, partial(_check, entry.id, question, answer))
    return inspect_checkpoint(entry.id, entry.path, entry.source)


def _entry(name: str, settings: Settings) -> ModelEntry:
    return inspect_checkpoint(name, settings.home / "models" / name, _PLACE)


def _check(name: str, question: str | None, answer: str | None, folder: Path) -> None:
    """Load a converted model, which computes a pass, and compare its answer with the known one.

    Raises ModelError.
    """
    from mlx_lm import generate  # noqa: PLC0415 — slow, and needed for a conversion alone

    loaded = load(ModelEntry(name, folder, _PLACE), "auto")
    model: Any = loaded.model
    if question is None:
        return
    prompt = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    text = generate(model, loaded.tokenizer, prompt, max_tokens=_ANSWER_TOKENS)
    if text.strip() != answer:
        raise ModelError("gguf.answer", model=name, expected=str(answer), found=text.strip())
