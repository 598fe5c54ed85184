"""Chat templates of a model directory, from every place where tools have written them.

    chat_template.jinja, additional_chat_templates/NAME.jinja     transformers, newer
    tokenizer_config.json: a text, or a list of named ones        transformers, older
    chat_template.json, processor_config.json                     processors of images

The first place that has a template of a name counts; processors' files are read only where the
tokenizer has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError
from omlx.models.catalog.model_config import MAX_CONFIG_BYTES, read_config

DEFAULT: Final = "default"
TEMPLATE_FILE: Final = "chat_template.jinja"
TEMPLATE_FOLDER: Final = "additional_chat_templates"
PROCESSOR_FILES: Final = ("chat_template.json", "processor_config.json")
_TOKENIZER: Final = "tokenizer_config.json"
_KEY: Final = "chat_template"


def chat_templates(directory: Path) -> dict[str, str]:
    """Return the templates of a model by name, `default` the one for chats; empty without any.

    Raises ModelError for a file that cannot be read.
    """
    named = {**_named(read_config(directory, _TOKENIZER).get(_KEY)), **_files(directory)}
    for name in PROCESSOR_FILES:
        if named:
            break
        named = _named(read_config(directory, name).get(_KEY))
    if len(named) == 1:
        return {DEFAULT: next(iter(named.values()))}
    return named


def _files(directory: Path) -> dict[str, str]:
    paths = {path.stem: path for path in sorted((directory / TEMPLATE_FOLDER).glob("*.jinja"))}
    paths[DEFAULT] = directory / TEMPLATE_FILE
    return {name: _read(path) for name, path in paths.items() if path.is_file()}


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {MAX_CONFIG_BYTES >> 20} MB")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=path.name, detail=str(error)) from None


def _named(value: Any) -> dict[str, str]:
    """Return the templates in a value of JSON: a text, texts by name, or a list of both."""
    match value:
        case str():
            return {DEFAULT: value}
        case Mapping():
            return {name: text for name, text in value.items() if isinstance(text, str)}
        case list():
            pairs = [(one.get("name"), one.get("template")) for one in value if type(one) is dict]
            return {str(name or DEFAULT): text for name, text in pairs if isinstance(text, str)}
        case _:
            return {}
