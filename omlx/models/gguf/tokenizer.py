"""Tokenizer of a GGUF file, from its metadata: byte-level BPE.

`tokenizer.ggml.pre` names how a text is split before merges apply. Each name is a rule of
llama.cpp's source; one that is not known here is refused, as the ids would be other ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError

_KEY: Final = "tokenizer.ggml."
_BPE: Final = "gpt2"
_DIGITS: Final = frozenset({"smollm"})
"""Rules that split digits one by one, then like GPT-2."""
_SPECIAL, _USER = 3, 4
"""Types of tokens that no text is merged into."""


def check_tokenizer(metadata: Mapping[str, Any]) -> int:
    """Return the number of tokens. Raises ModelError for a tokenizer that is not known here."""
    model, rule = metadata.get(f"{_KEY}model"), metadata.get(f"{_KEY}pre")
    if model != _BPE or rule not in _DIGITS:
        raise ModelError("gguf.tokenizer", tokenizer=f"{model}/{rule}", known=_known())
    tokens, merges, types = (_list(metadata, name) for name in ("tokens", "merges", "token_type"))
    if not tokens or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError("gguf.value", key=f"{_KEY}tokens", value=f"{len(tokens)}, {len(types)}")
    vocabulary = set(tokens)
    for merge in merges:
        first, _, second = str(merge).partition(" ")
        if not {first, second, first + second} <= vocabulary:
            raise ModelError("gguf.value", key=f"{_KEY}merges", value=str(merge)[:100])
    for name in ("bos", "eos", "padding", "unknown"):
        token = metadata.get(f"{_KEY}{name}_token_id", 0)
        if type(token) is not int or not 0 <= token < len(tokens):
            raise ModelError("gguf.value", key=f"{_KEY}{name}_token_id", value=str(token)[:100])
    return len(tokens)


def save_tokenizer(metadata: Mapping[str, Any], directory: Path) -> None:
    """Write the tokenizer of a checked file, with its chat template, into a model's folder."""
    from tokenizers import (  # noqa: PLC0415 — slow, and needed for a conversion alone
        AddedToken,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 — as above

    tokens: list[str] = metadata[f"{_KEY}tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata[f"{_KEY}merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = zip(tokens, metadata[f"{_KEY}token_type"], strict=True)
    added = [(token, kind) for token, kind in types if kind in (_SPECIAL, _USER)]
    tokenizer.add_tokens(
        [AddedToken(token, special=kind == _SPECIAL, normalized=False) for token, kind in added]
    )
    options: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token = metadata.get(f"{_KEY}{key}_token_id")
        if token is not None:
            options[f"{name}_token"] = tokens[token]
    made: Any = PreTrainedTokenizerFast
    fast = made(tokenizer_object=tokenizer, **options)
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        fast.chat_template = template
    fast.save_pretrained(directory)


def _list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"{_KEY}{name}")
    if not isinstance(value, list):
        raise ModelError("gguf.value", key=f"{_KEY}{name}", value=str(value)[:100])
    return value


def _known() -> str:
    return ", ".join(f"{_BPE}/{rule}" for rule in sorted(_DIGITS))
