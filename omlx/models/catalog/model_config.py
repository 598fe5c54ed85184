"""The model's configs: reading them, stop tokens and sampling defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError

Number = int | float

MAX_CONFIG_BYTES: Final = 16 << 20
"""A config with settings for each of thousands of layers has less than 1 MB."""
MAX_INDEX_BYTES: Final = 64 << 20
"""An index names each tensor: about 10 MB for 100,000 of them."""

_STOP_KEYS = ("eos_token_id", "eos_token_ids")
_SAMPLING: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}


def read_config(directory: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in `directory/name`, empty without a file. Raises ModelError for other
    content.
    """
    path = directory / name
    try:
        return read_object(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=name, detail=str(error)) from None


def read_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError, and ValueError for other content."""
    if path.stat().st_size > max_bytes:
        raise ValueError(f"larger than {max_bytes >> 20} MB")
    return json_object(path.read_text(encoding="utf-8"))


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for other JSON and for strings that are not Unicode
    text.
    """
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    json.dumps(content, ensure_ascii=False).encode()  # raises for half of a surrogate pair
    return content


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a multimodal config, else an empty one."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else {}


def stop_tokens(*configs: Mapping[str, Any]) -> set[int | str]:
    """Return the stop tokens that configs name, by id or by text.

    Some have one, others a list; some tools write it under the plural.
    """
    stops: set[int | str] = set()
    for config in configs:
        for part in (config, text_config(config)):
            for key in _STOP_KEYS:
                value = part.get(key)
                listed = value if isinstance(value, list) else [value]
                stops |= {token for token in listed if type(token) is int or type(token) is str}
    return stops


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Number]:
    """Return the sampling parameters by our names; `do_sample: false` is temperature 0."""
    defaults: dict[str, Number] = {}
    for name, kind in _SAMPLING.items():
        value = generation_config.get(name)
        if isinstance(value, int | float):
            defaults[name] = kind(value)
    if generation_config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults
