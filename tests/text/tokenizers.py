"""Small real tokenizers: byte-level BPE with ChatML and `<think>`, and a byte-fallback one as
SentencePiece makes.
"""

from __future__ import annotations

import json
from pathlib import Path

from mlx_lm.tokenizer_utils import TokenizerWrapper, load

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and deep %}<think>\n{% endif %}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")


def decode_byte_level(
    folder: Path, template: str | None = CHATML, special: tuple[str, ...] = SPECIAL
) -> TokenizerWrapper:
    """One token a byte, a few merges; ids of the special tokens come last."""
    alphabet = [chr(byte) for byte in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]]
    alphabet += [chr(0x100 + i) for i in range(0x100 - len(alphabet))]
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("l", "l"), ("Ã", "©"), ("<", "/")]
    pieces = alphabet + [a + b for a, b in merges]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    model = {"type": "BPE", "vocab": vocab, "merges": [list(pair) for pair in merges]}
    pre = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return _write(folder, model, pre, pre, len(pieces), template, special=special)


def byte_fallback(folder: Path) -> TokenizerWrapper:
    """Tokens `<0x00>` … `<0xFF>` for what has no piece, `▁` for the space."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefghijklmnopqrstuvwxyz<>/",
        "▁the",
    ]
    model = {
        "type": "BPE",
        "vocab": {piece: i for i, piece in enumerate(pieces)},
        "merges": [],
        "unk_token": "<unk>",
        "byte_fallback": True,
        "fuse_unk": True,
    }
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return _write(folder, model, None, decoder, len(pieces), CHATML, normalizer)


def _write(
    folder: Path,
    model: dict[str, object],
    pre: dict[str, object] | None,
    decoder: dict[str, object],
    size: int,
    template: str | None,
    normalizer: dict[str, object] | None = None,
    special: tuple[str, ...] = SPECIAL,
) -> TokenizerWrapper:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": size + i, "content": text, "special": True, **flags}
        for i, text in enumerate(special)
    ]
    body = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return load(folder)
