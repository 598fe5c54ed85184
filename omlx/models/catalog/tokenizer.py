"""Tokenizers of model directories, read without weights."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Final

from omlx.errors import ModelError, one_line
from omlx.models.catalog.config import stop_tokens
from omlx.models.catalog.files import (
    CONFIG,
    DEFAULT,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    ModelFiles,
    check_files,
)
from omlx.models.catalog.registry import ModelEntry
from omlx.models.library.sources import importing
from omlx.text.tokens import Tokenizer, per_tokenizer

CACHE_SIZE: Final = 4
"""Tokenizers kept for models not loaded."""

_STOP_FILES: Final = (CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG)
_ENGINE: Final = "omlx.engine.build"


def import_mlx_lm() -> None:
    """Import mlx-lm and the engine modules that need it, which takes a second or more.

    Servers without a model skip this cost.
    """
    with importing():
        import_module(_ENGINE)


def read_tokenizer(entry: ModelEntry) -> Tokenizer:
    """Read a model's tokenizer, chat templates and stop tokens. Raises ModelError."""
    check_files(entry.path)
    import_mlx_lm()
    from mlx_lm import utils  # noqa: PLC0415 — see `import_mlx_lm`

    files = entry.files
    stops = stop_tokens(*map(files.json, _STOP_FILES))
    named = files.templates()
    templates = named[DEFAULT] if list(named) == [DEFAULT] else named
    given = {"chat_template": templates} if templates else {}
    try:
        tokenizer: Tokenizer = utils.load_tokenizer(
            entry.path,
            {"trust_remote_code": False, **given},
            eos_token_ids=[token for token in stops if isinstance(token, int)] or None,
        )
        if templates:
            tokenizer.chat_template = templates  # files of further ones replace what was passed
        for text in stops & tokenizer.get_vocab().keys():
            tokenizer.add_eos_token(text)
        tokenizer_length(tokenizer)  # here rather than on the engine thread
        return tokenizer
    except Exception as error:  # the tokenizers library raises bare Exception for a broken file
        raise ModelError("model.tokenizer", detail=one_line(error)) from error


@per_tokenizer
def tokenizer_length(tokenizer: Tokenizer) -> int:
    """Return the highest token id plus one: the width that logits are cut to.

    Cached: a large vocabulary takes 0.1 s, in which no other thread runs Python.
    """
    ids: dict[str, int] = tokenizer.get_vocab()
    return max(ids.values()) + 1


@lru_cache(CACHE_SIZE)
def cached_tokenizer(entry: ModelEntry, files: ModelFiles) -> Tokenizer:
    """Return the tokenizer of a model that is not loaded; `files` is part of the cache key.

    Raises ModelError.
    """
    return read_tokenizer(entry)
