"""Ways to break a model folder: truncated, bent, missing, looping, giant."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

Breakage = Callable[[Path], None]

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PACKAGE = "model-package.json"
INDEX = "model.safetensors.index.json"
DEEP = "[" * 100_000 + "]" * 100_000


def missing(name: str) -> Breakage:
    return lambda folder: (folder / name).unlink()


def replaced(name: str, make: Callable[[Path], object]) -> Breakage:
    """Make something else in the place of a file."""

    def replace(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return replace


def content(name: str, text: str | bytes) -> Breakage:
    data = text.encode() if isinstance(text, str) else text
    return replaced(name, lambda file: file.write_bytes(data))


def directory(name: str) -> Breakage:
    return replaced(name, Path.mkdir)


def link(name: str, target: str) -> Breakage:
    return replaced(name, lambda file: file.symlink_to(target))


def pipe(name: str) -> Breakage:
    return replaced(name, os.mkfifo)


def sparse(name: str, size: int) -> Breakage:
    """A file of zeros that takes no disk space."""

    def make(file: Path) -> None:
        file.touch()
        os.truncate(file, size)

    return replaced(name, make)


def together(*changes: Breakage) -> Breakage:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


def fields(name: str, *absent: str, **values: object) -> Breakage:
    """Change keys of a JSON file; remove those in `absent`."""

    def change(folder: Path) -> None:
        known = json.loads((folder / name).read_text())
        for key in absent:
            del known[key]
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(known | values))

    return change


def config(*absent: str, **values: object) -> Breakage:
    return fields(CONFIG, *absent, **values)


def truncated(name: str, share: float) -> Breakage:
    return lambda folder: cut(name, int((folder / name).stat().st_size * share))(folder)


def cut(name: str, length: int) -> Breakage:
    """Leave the first bytes of a file; all but the last ones if `length` is below zero."""
    return lambda folder: content(name, (folder / name).read_bytes()[:length])(folder)


def weights(change: Callable[[dict[str, mx.array]], object], name: str = WEIGHTS) -> Breakage:
    """Change the tensors of a file."""

    def rewrite(folder: Path) -> None:
        tensors: dict[str, Any] = dict(mx.load(str(folder / name)))
        change(tensors)
        mx.eval(tensors)
        (folder / name).unlink()
        mx.save_safetensors(str(folder / name), tensors)

    return rewrite


def flipped(name: str, *offsets: int) -> Breakage:
    """Flip every bit of some bytes."""

    def flip(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        for offset in offsets:
            data[offset] ^= 0xFF
        content(name, bytes(data))(folder)

    return flip


def header(change: Callable[[dict[str, Any]], object]) -> Breakage:
    """Change the header of the weights; the data stays."""

    def rewrite(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        tensors = json.loads(data[8 : 8 + length])
        change(tensors)
        text = json.dumps(tensors).encode()
        whole = struct.pack("<Q", len(text)) + text + data[8 + length :]
        content(WEIGHTS, whole)(folder)

    return rewrite


def tensor(**values: object) -> Breakage:
    """Change the entry of one tensor in the header."""
    return header(lambda tensors: tensors["model.norm.weight"].update(values))


def shards(*present: int, total: int = 3) -> Breakage:
    """The weights become one shard of several, of which only those `present` are there."""

    def split(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).unlink()
        for number in present:
            (folder / f"model-{number:05}-of-{total:05}.safetensors").write_bytes(data)

    return split


def vocabulary(change: Callable[[dict[str, Any]], object]) -> Breakage:
    """Change the content of tokenizer.json."""

    def rewrite(folder: Path) -> None:
        known = json.loads((folder / TOKENIZER).read_text())
        change(known)
        content(TOKENIZER, json.dumps(known))(folder)

    return rewrite


def swap_two_tokens(content: dict[str, Any]) -> None:
    """A change of tokenizer.json that only comparing ids reveals."""
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def filled(value: float, *parts: str) -> Breakage:
    """Fill the weights whose name has one of `parts` with `value`."""

    def change(tensors: dict[str, mx.array]) -> None:
        for name, tensor in tensors.items():
            if any(part in name for part in parts):
                tensors[name] = mx.full(tensor.shape, value, tensor.dtype)

    return weights(change)


def flipped_exponents(folder: Path) -> None:
    """Set the highest exponent bits of every hundredth 16-bit number of the data."""
    data = bytearray((folder / WEIGHTS).read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    for offset in range(start + 1, len(data), 200):
        data[offset] |= 0x7F
    content(WEIGHTS, bytes(data))(folder)


NOT_FINITE: dict[str, Breakage] = {
    "nan-layer": filled(math.nan, "layers.1."),
    "nan-norm": filled(math.nan, "model.norm"),
    "infinite-norm": filled(math.inf, "model.norm"),
    "nan-embedding": filled(math.nan, "embed_tokens"),
    "huge-weights": filled(3e38, "mlp"),
    "flipped-exponents": flipped_exponents,
    "rope-theta-zero": config(rope_theta=0),
    "epsilon-nan": config(rms_norm_eps=math.nan),
}
"""Each makes the bundled draft model compute numbers that are not finite."""

BROKEN: dict[str, Breakage] = {
    # weights
    "weights-missing": missing(WEIGHTS),
    "weights-empty": content(WEIGHTS, b""),
    "weights-seven-bytes": content(WEIGHTS, b"1234567"),
    "weights-half": truncated(WEIGHTS, 0.5),
    "weights-last-byte": truncated(WEIGHTS, 0.999999),
    "weights-in-header": truncated(WEIGHTS, 0.0002),
    "weights-text": content(WEIGHTS, "not weights at all" * 100),
    "weights-lfs": content(WEIGHTS, "version https://git-lfs.github.com/spec/v1\nsize 1\n"),
    "weights-directory": directory(WEIGHTS),
    "weights-pipe": pipe(WEIGHTS),
    "weights-pipe-beside": pipe("model-extra.safetensors"),
    "weights-link-to-itself": link(WEIGHTS, WEIGHTS),
    "weights-link-to-nothing": link(WEIGHTS, "../nothing"),
    "weights-link-to-device": link(WEIGHTS, "/dev/zero"),
    "weights-zeros": sparse(WEIGHTS, 1 << 20),
    "header-length-flipped": flipped(WEIGHTS, 7),
    "header-flipped": flipped(WEIGHTS, 8, 9, 40),
    "header-deep": content(WEIGHTS, struct.pack("<Q", len(DEEP)) + DEEP.encode()),
    "header-list": content(WEIGHTS, struct.pack("<Q", 2) + b"[]"),
    "header-without-tensors": content(WEIGHTS, struct.pack("<Q", 2) + b"{}"),
    "tensor-missing": header(lambda tensors: tensors.pop("model.norm.weight")),
    "tensor-renamed": header(
        lambda tensors: tensors.update(other=tensors.pop("model.norm.weight"))
    ),
    "tensor-extra": header(lambda tensors: tensors.update(extra={**tensors["model.norm.weight"]})),
    "tensor-shape": tensor(shape=[96]),
    "tensor-shape-negative": tensor(shape=[-192]),
    "tensor-shape-huge": tensor(shape=[1 << 40]),
    "tensor-shape-text": tensor(shape="192"),
    "tensor-dtype-unknown": tensor(dtype="F7"),
    "tensor-dtype-wide": tensor(dtype="F32"),
    "tensor-dtype-null": tensor(dtype=None),
    "tensor-offsets-outside": tensor(data_offsets=[0, 1 << 40]),
    "tensor-offsets-negative": tensor(data_offsets=[-10, 374]),
    "tensor-offsets-reversed": tensor(data_offsets=[384, 0]),
    "tensor-offsets-missing": header(
        lambda tensors: tensors["model.norm.weight"].pop("data_offsets")
    ),
    # shards and index
    "shards-first-only": shards(1),
    "shards-last-missing": shards(1, 2),
    "shards-million": shards(1, total=99_999),
    # config
    "config-missing": missing(CONFIG),
    "config-empty": content(CONFIG, ""),
    "config-half": truncated(CONFIG, 0.5),
    "config-list": content(CONFIG, "[]"),
    "config-null": content(CONFIG, "null"),
    "config-empty-object": content(CONFIG, "{}"),
    "config-deep": content(CONFIG, '{"model_type": ' + DEEP + "}"),
    "config-latin": content(CONFIG, b'{"model_type": "ll\xe4ma"}'),
    "config-surrogate": content(CONFIG, '{"model_type": "\\ud800"}'),
    "config-giant": sparse(CONFIG, 3 << 30),
    "config-directory": directory(CONFIG),
    "config-pipe": pipe(CONFIG),
    "config-link-to-itself": link(CONFIG, CONFIG),
    "config-device": link(CONFIG, "/dev/zero"),
    "type-unknown": config(model_type="hal9000"),
    "type-number": config(model_type=7),
    "type-path": config(model_type="../../etc/passwd"),
    "type-other": config(model_type="mamba"),
    "type-escape": config(model_type="\x1b[31mred\n"),
    "own-code": config(model_file="own.py"),
    "layers-ten-million": config(num_hidden_layers=10_000_000),
    "layers-nested": config(text_config={"num_hidden_layers": 10**12}, model_type="gemma3"),
    "layers-more": config(num_hidden_layers=200),
    "layers-none": config(num_hidden_layers=0),
    "layers-negative": config(num_hidden_layers=-2),
    "layers-text": config(num_hidden_layers="2"),
    "layers-null": config(num_hidden_layers=None),
    "layers-fraction": config(num_hidden_layers=2.5),
    "layers-absent": config("num_hidden_layers"),
    "vocab-huge": config(vocab_size=10**12),
    "vocab-large": config(vocab_size=10**8),
    "vocab-negative": config(vocab_size=-1),
    "vocab-text": config(vocab_size="2048"),
    "hidden-zero": config(hidden_size=0),
    "hidden-huge": config(hidden_size=10**9),
    "heads-zero": config(num_attention_heads=0),
    "heads-many": config(num_attention_heads=10**7),
    "heads-uneven": config(num_attention_heads=3, num_key_value_heads=2),
    "head-dim-huge": config(head_dim=10**8),
    "epsilon-text": config(rms_norm_eps="small"),
    "rope-list": config(rope_theta=[1, 2]),
    "rope-zero": config(rope_theta=0),
    "rope-scaling-unknown": config(rope_scaling={"rope_type": "spiral"}),
    "rope-scaling-empty": config(rope_scaling={"rope_type": "yarn"}),
    "quantized-list": config(quantization=[4]),
    "attention-bias": config(attention_bias=True),
    # tokenizer
    "tokenizer-missing": missing(TOKENIZER),
    "tokenizer-empty": content(TOKENIZER, ""),
    "tokenizer-half": truncated(TOKENIZER, 0.5),
    "tokenizer-list": content(TOKENIZER, "[]"),
    "tokenizer-deep": content(TOKENIZER, DEEP),
    "tokenizer-giant": sparse(TOKENIZER, 3 << 30),
    "tokenizer-pipe": pipe(TOKENIZER),
    "tokenizer-directory": directory(TOKENIZER),
    "tokenizer-device": link(TOKENIZER, "/dev/zero"),
    "tokenizer-no-vocabulary": vocabulary(lambda known: known["model"].pop("vocab")),
    "tokenizer-empty-vocabulary": vocabulary(
        lambda known: known.update(added_tokens=[], model={**known["model"], "vocab": {}})
    ),
    "tokenizer-merges": vocabulary(lambda known: known["model"].update(merges=[["x", "yyy"]])),
    "tokenizer-model-unknown": vocabulary(lambda known: known["model"].update(type="Magic")),
    "tokenizer-config-list": content(TOKENIZER_CONFIG, "[]"),
    "tokenizer-config-half": truncated(TOKENIZER_CONFIG, 0.5),
    "tokenizer-config-deep": content(TOKENIZER_CONFIG, DEEP),
    "tokenizer-config-pipe": pipe(TOKENIZER_CONFIG),
    # template
    "template-syntax": fields(TOKENIZER_CONFIG, chat_template="{% for %}"),
    "template-number": fields(TOKENIZER_CONFIG, chat_template=7),
    "template-raises": fields(TOKENIZER_CONFIG, chat_template="{{ raise_exception('no') }}"),
    "template-empty": fields(TOKENIZER_CONFIG, chat_template=""),
    "template-climbs": fields(TOKENIZER_CONFIG, chat_template="{{ ''.__class__.__mro__ }}"),
    "template-file-pipe": pipe("chat_template.jinja"),
    # generation
    "generation-list": content("generation_config.json", "[]"),
    "generation-half": content("generation_config.json", '{"temperature": 0.'),
    "generation-pipe": pipe("generation_config.json"),
}
"""Each makes the bundled draft model unusable, by name."""

HARMLESS: dict[str, Breakage] = {
    "quantized-not": config(quantization={"group_size": 7, "bits": 99}),
    "quantized-unknown": config(quantization_config={"quant_method": "magic"}),
    "tokenizer-class-code": fields(TOKENIZER_CONFIG, auto_map={"AutoTokenizer": ["own.Own", None]}),
    "index-empty": content(INDEX, "{}"),
    "index-bent": content(INDEX, '{"weight_map": [1, 2]}'),
    "package-bent": content(PACKAGE, "["),
    "package-deep": content(PACKAGE, DEEP),
    "package-pipe": pipe(PACKAGE),
    "config-odd-fields": config(eos_token_id=["x", -1, 10**12], architectures="LlamaForCausalLM"),
    "config-context-odd": config(max_position_embeddings="long", n_positions=-5),
    "generation-odd": content(
        "generation_config.json", '{"temperature": -7, "top_k": 1e9, "top_p": 40, "min_p": null}'
    ),
    "rope-theta-huge": config(rope_theta=1e30),
}
"""Each leaves the model usable, or refused with a reason: it must not be a fault of ours."""
