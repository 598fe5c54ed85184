"""What the files of a model say of it, for clients that choose by context length and abilities.

Read once and again when a file changes: a list of 300 models costs their `stat` calls.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError
from omlx.models.catalog.chat_templates import (
    PROCESSOR_FILES,
    TEMPLATE_FILE,
    TEMPLATE_FOLDER,
    chat_templates,
)
from omlx.models.catalog.context import context_length, longest_context
from omlx.models.catalog.encoders import encoder_window, is_encoder
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.model_config import read_config
from omlx.models.package.modules import MODULES
from omlx.models.package.reranking import is_reranker
from omlx.text.reasoning import FAMILIES, THINK

_CONFIG: Final = "config.json"
_TOKENIZER: Final = "tokenizer_config.json"
_FILES: Final = (
    *(_CONFIG, _TOKENIZER, TEMPLATE_FILE, MODULES, TEMPLATE_FOLDER),
    *PROCESSOR_FILES,
)
_TOOLS: Final = re.compile(r"\btools\b")
_REASONING: Final = (*FAMILIES, (THINK.opens, THINK.closes), ("<|channel>",), ("<|channel|>",))
"""Texts of chat templates of models that reason, all of a group."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`context_length` in tokens, `longest_context` what a user may raise it to, `created` in
    seconds since 1970.

    `tools` and `reasoning` say whether the chat template has a place for them, `generates` whether
    it answers at all.
    """

    context_length: int
    longest_context: int
    tools: bool = False
    reasoning: bool = False
    embeddings: bool = False
    reranks: bool = False
    generates: bool = True
    created: int = 0


class ModelFactsCache:
    """Facts by model directory. Thread-safe: at worst, two threads read the same files."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], ModelFacts]] = {}

    def get(self, entry: ModelEntry) -> ModelFacts:
        """Return the facts of a model; those of unreadable files are missing. Reads files."""
        changed = tuple(_changed_at(entry.path / name) for name in _FILES)
        known = self._known.get(entry.path)
        if known is None or known[0] != changed:
            known = self._known[entry.path] = changed, _read(entry, changed)
        return known[1]


def _changed_at(path: Path) -> int:
    """In nanoseconds; 0 without the file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read(entry: ModelEntry, changed: tuple[int, ...]) -> ModelFacts:
    directory = entry.path
    config, tokenizer = _config(directory, _CONFIG), _config(directory, _TOKENIZER)
    template = _template(directory)
    limit = tokenizer.get("model_max_length")
    limit = limit if isinstance(limit, int | float) else 0
    context, longest = context_length(config, limit), longest_context(config, limit)
    reranks = False
    with suppress(ModelError):  # the reason is shown when the model is loaded
        reranks = is_reranker(directory, entry.id)
        if is_encoder(config):
            context = longest = encoder_window(directory, config) or context
    return ModelFacts(
        context_length=context,
        longest_context=longest,
        tools=_TOOLS.search(template) is not None,
        reasoning=any(all(text in template for text in texts) for texts in _REASONING),
        embeddings=bool(changed[_FILES.index(MODULES)]) and not reranks,
        reranks=reranks,
        generates=not is_encoder(config),
        created=changed[0] // 10**9,
    )


def _config(directory: Path, name: str) -> dict[str, Any]:
    try:
        return read_config(directory, name)
    except ModelError:  # the reason is shown when the model is loaded
        return {}


def _template(directory: Path) -> str:
    """Return the text of all chat templates."""
    try:
        return "\n".join(chat_templates(directory).values())
    except ModelError:  # the reason is shown when the model is loaded
        return ""
