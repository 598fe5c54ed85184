"""What config.json and generation_config.json say about serving a model: context, stop ids, sampling defaults."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omlx.errors import ModelError

Number = int | float

_CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
)
_DEFAULT_CONTEXT = 32_768
_LARGEST_CONTEXT = 1 << 24  # tokenizers say 10^30 where they mean that nothing limits them
_SAMPLING: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "repetition_penalty": float,
}


def read_config(directory: Path, name: str) -> dict[str, Any]:
    """The JSON object in `directory/name`; empty if there is no such file. Raises ModelError for anything else."""
    path = directory / name
    try:
        return json_object(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError("model.config_unreadable", file=name, detail=str(error)) from None


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that a text is. Raises ValueError for anything else, and for strings that are no text."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    json.dumps(
        content, ensure_ascii=False
    ).encode()  # half a surrogate pair could not be shown to anybody
    return content


def context_length(config: Mapping[str, Any], tokenizer_length: Number) -> int:
    """Tokens that the model was made for. A multimodal wrapper says it in `text_config`."""
    for holder in _holders(config):
        for key in _CONTEXT_KEYS:
            value = holder.get(key)
            if isinstance(value, int) and value > 0:
                return value
    return int(tokenizer_length) if 0 < tokenizer_length < _LARGEST_CONTEXT else _DEFAULT_CONTEXT


def stop_ids(tokenizer_ids: Iterable[int], *configs: Mapping[str, Any]) -> frozenset[int]:
    """The union of what the tokenizer, config.json and generation_config.json call the end of a text."""
    found = set(tokenizer_ids)
    for config in configs:
        for holder in _holders(config):
            ids = holder.get("eos_token_id")
            found |= {
                each for each in (ids if isinstance(ids, list) else [ids]) if isinstance(each, int)
            }
    return frozenset(found)


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, Number]:
    """Sampling parameters by the names of `Sampling`. `do_sample: false` is temperature 0."""
    defaults: dict[str, Number] = {
        name: kind(generation_config[name])
        for name, kind in _SAMPLING.items()
        if isinstance(generation_config.get(name), int | float)
    }
    if generation_config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def _holders(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    text = config.get("text_config")
    return [config, text] if isinstance(text, Mapping) else [config]
