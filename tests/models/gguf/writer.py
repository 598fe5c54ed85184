"""GGUF files as llama.cpp's converter writes them, by the format's description."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx.models.catalog.discovery import BUNDLED
from tests.server.running import TARGET

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
ALIGNMENT = 32
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Tensors = dict[str, tuple[str, np.ndarray]]
"""Type and values of each tensor, by its name in the file."""


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(given: Any) -> bytes:
    """Return type and bytes of a value in the metadata."""
    match given:
        case bool():
            return struct.pack("<I?", 7, given)
        case int():
            return struct.pack("<II", 4, given)
        case float():
            return struct.pack("<If", 6, given)
        case str():
            return struct.pack("<I", 8) + text(given)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(given)) + b"".join(map(text, given))
        case list():
            return struct.pack(f"<IIQ{len(given)}i", 9, 5, len(given), *given)
    raise TypeError(given)


def encode(kind: str, values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return a tensor's bytes, and the float32 values that they stand for."""
    if kind in ("F32", "F16"):
        stored = values.astype(np.float32 if kind == "F32" else np.float16)
        return stored.tobytes(), stored.astype(np.float32)
    blocks = values.astype(np.float32).reshape(-1, 32)
    if kind == "Q8_0":
        scale = (np.abs(blocks).max(1) / 127).astype(np.float16)
        step = scale.astype(np.float32)[:, None]
        numbers = np.round(blocks / step).astype(np.int8)
        rows = [a.tobytes() + b.tobytes() for a, b in zip(scale, numbers, strict=True)]
        return b"".join(rows), (numbers * step).reshape(values.shape)
    if kind == "Q4_0":
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)[:, 0]
        scale, offset = (largest / -8).astype(np.float16), None
        step = scale.astype(np.float32)[:, None]
        numbers = np.clip(np.floor(blocks / step + 8.5), 0, 15).astype(np.uint8)
        expected = (numbers.astype(np.float32) - 8) * step
    else:
        low = blocks.min(1)
        scale, offset = ((blocks.max(1) - low) / 15).astype(np.float16), low.astype(np.float16)
        step, base = (part.astype(np.float32)[:, None] for part in (scale, offset))
        numbers = np.clip(np.round((blocks - base) / step), 0, 15).astype(np.uint8)
        expected = numbers * step + base
    packed = numbers[:, :16] | numbers[:, 16:] << 4
    head = [scale] if offset is None else [scale, offset]
    rows = [
        b"".join(part[i].tobytes() for part in head) + packed[i].tobytes()
        for i in range(len(packed))
    ]
    return b"".join(rows), expected.reshape(values.shape)


def write(file: Path, metadata: Mapping[str, Any], tensors: Tensors) -> dict[str, np.ndarray]:
    """Write a file; return the values that its tensors stand for."""
    values = b"".join(text(key) + value(given) for key, given in metadata.items())
    infos, data, expected = b"", b"", {}
    for name, (kind, array) in tensors.items():
        shape = tuple(reversed(array.shape))
        infos += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        infos += struct.pack("<IQ", TYPES[kind], len(data))
        stored, expected[name] = encode(kind, array)
        data += stored + bytes(-len(stored) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + values + infos
    file.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return expected


def paired(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows as llama.cpp stores those of queries and keys."""
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def demo_tokenizer() -> dict[str, Any]:
    """Return the metadata of the bundled tokenizer, which splits texts as SmolLM2's does."""
    folder = BUNDLED / TARGET
    content = json.loads((folder / "tokenizer.json").read_text())
    added = {token["id"]: token for token in content["added_tokens"]}
    texts = {number: text for text, number in content["model"]["vocab"].items()}
    texts |= {number: token["content"] for number, token in added.items()}
    tokens = [texts[number] for number in range(max(texts) + 1)]
    types = [3 if added.get(number, {}).get("special") else 1 for number in range(len(tokens))]
    types = [4 if number in added and kind == 1 else kind for number, kind in enumerate(types)]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": config["chat_template"],
    }


def metadata_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a llama by its config."""
    return {
        "general.architecture": "llama",
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.rope.freq_base": config["rope_theta"],
        **demo_tokenizer(),
    }


def tensors_of(
    weights: Mapping[str, mx.array], config: Mapping[str, Any], kind: str = "F32"
) -> Tensors:
    """Return the tensors of a llama; vectors are float32 in all files."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    tensors = {}
    for name, array in weights.items():
        module = name.removesuffix(".weight")
        if module in outer:
            known = outer[module]
        else:
            _, _, layer, rest = module.split(".", 3)
            known = f"blk.{layer}.{NAMES[rest]}"
        values = np.array(array.astype(mx.float32))
        if known.rpartition(".")[2] in heads:
            values = paired(values, heads[known.rpartition(".")[2]])
        tensors[f"{known}.weight"] = (kind if values.ndim > 1 else "F32", values)
    return tensors


def demo_file(file: Path) -> Path:
    """Write the bundled model in float32, which holds its weights exactly."""
    config = json.loads((BUNDLED / TARGET / "config.json").read_text())
    weights = mx.load(str(BUNDLED / TARGET / "model.safetensors"))
    write(file, metadata_of(config), tensors_of(weights, config))
    return file
