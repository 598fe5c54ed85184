"""Conversion of GGUF files: the same weights and ids; or one error, and nothing is left."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from omlx.catalog import catalog
from omlx.errors import ModelError
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.gguf.convert import convert
from omlx.models.gguf.header import read_header
from omlx.models.gguf.llama import check_tokenizer, llama_config, mlx_name
from omlx.models.pool.load_weights import load
from tests.lanes import few
from tests.models.gguf.writer import (
    Tensors,
    demo_file,
    demo_tokenizer,
    metadata_of,
    tensors_of,
    write,
)
from tests.models.trees import entry
from tests.refusals import refused
from tests.server.running import TARGET

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_theta": 5000.0,
}
VOCABULARY = len(demo_tokenizer()["tokenizer.ggml.tokens"])
PROMPT = mx.array([[5, 90, 700, 31, 4, 1999, 8]])


def tiny(kind: str, *, tied: bool = False, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """Return metadata and tensors of a tiny model with random weights."""
    mx.random.seed(3)
    config = {**TINY, "vocab_size": VOCABULARY, "tie_word_embeddings": tied, "model_type": "llama"}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    weights = dict(tree_flatten(model.parameters()))
    metadata = {**metadata_of(config), **changes}
    return metadata, tensors_of(weights, config, kind)


def halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows in pairs as rows half a head apart, one by one."""
    result = np.empty_like(rows)
    size = len(rows) // heads
    for head in range(heads):
        for row in range(size):
            half, at = row % 2, row // 2
            result[head * size + half * size // 2 + at] = rows[head * size + row]
    return result


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q4_1", "Q8_0"])
def test_weights_are_those_that_the_file_stands_for(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "m.gguf"
    expected = write(file, *tiny(kind))
    convert(file, tmp_path / "m")
    weights = mx.load(str(tmp_path / "m/model.safetensors"))
    assert weights.keys() == {mlx_name(name) for name in expected}
    for name, values in expected.items():
        heads = {"attn_q": 4, "attn_k": 2}.get(name.split(".")[-2], 0)
        values = halves(values, heads) if heads else values
        array = weights[mlx_name(name)]
        assert array.dtype == mx.float32
        assert np.array_equal(np.array(array), values), name


@pytest.mark.parametrize("kind", few(("F16", "Q4_0", "Q4_1", "Q8_0"), "Q4_1"))
def test_a_gpu_gets_the_weights_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    metadata, tensors = tiny(kind)
    tensors["output.weight"] = ("Q8_0", tensors["output.weight"][1])
    write(tmp_path / "m.gguf", metadata, tensors)
    convert(tmp_path / "m.gguf", tmp_path / "dense")
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    convert(tmp_path / "m.gguf", tmp_path / "packed")
    monkeypatch.undo()
    logits = {}
    for name in ("dense", "packed"):
        loaded = load(entry(tmp_path / name), "auto")
        logits[name] = np.array(loaded.model(PROMPT).astype(mx.float32))
    config = json.loads((tmp_path / "packed/config.json").read_text())
    assert config["quantization"]["bits"] == (int(kind[1]) if kind != "F16" else 8)
    assert np.abs(logits["packed"] - logits["dense"]).max() < 0.02 * np.abs(logits["dense"]).max()
    size = [(tmp_path / name / "model.safetensors").stat().st_size for name in logits]
    assert size[1] < 0.6 * size[0]


def test_the_bundled_model_comes_back_from_a_file(tmp_path: Path) -> None:
    convert(demo_file(tmp_path / "demo.gguf"), tmp_path / "demo")
    folders = (tmp_path / "demo", BUNDLED / TARGET)
    one, other = (load(entry(folder), "float32") for folder in folders)
    assert mx.array_equal(one.model(PROMPT), other.model(PROMPT)).item()
    assert one.context_length == other.context_length
    texts = ["Hello, wörld 12345!", "日本語 👍\n\n  x", "<|im_start|>user<think>\n</think>a", ""]
    for text in texts:
        assert one.tokenizer.encode(text) == other.tokenizer.encode(text)
        assert one.tokenizer.decode(one.tokenizer.encode(text)) == text
    messages = [{"role": "user", "content": "a"}]
    ours, theirs = (model.tokenizer.apply_chat_template(messages) for model in (one, other))
    assert ours == theirs
    assert 2 in one.stop_ids


def test_a_folder_of_the_same_file_stays_and_of_another_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", *tiny("Q4_0"))
    convert(tmp_path / "m.gguf", tmp_path / "m")
    before = (tmp_path / "m/model.safetensors").stat().st_mtime_ns
    convert(tmp_path / "m.gguf", tmp_path / "m")
    assert (tmp_path / "m/model.safetensors").stat().st_mtime_ns == before
    write(tmp_path / "m.gguf", *tiny("Q8_0"))
    assert refusal(tmp_path / "m.gguf", tmp_path / "m") == "gguf.exists"


def test_a_scaling_of_positions_is_taken(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    original = {"llama.rope.scaling.original_context_length": 512}
    write(tmp_path / "m.gguf", *tiny("Q4_0", tied=True, **scaling, **original))
    convert(tmp_path / "m.gguf", tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert config["rope_scaling"]["factor"] == 4.0
    assert load(entry(tmp_path / "m"), "auto").context_length == 2048


def refusal(file: Path, directory: Path) -> str:
    """Return the code of the error; nothing but what was there before is left."""
    before = sorted(directory.parent.rglob("*"))
    with pytest.raises(ModelError) as caught:
        convert(file, directory)
    assert sorted(directory.parent.rglob("*")) == before
    assert caught.value.code in catalog()
    assert "{" not in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.code


def without(name: str) -> Callable[[dict[str, Any], Tensors], None]:
    def change(metadata: dict[str, Any], tensors: Tensors) -> None:
        metadata.pop(name, None)
        tensors.pop(name, None)

    return change


def having(**values: Any) -> Callable[[dict[str, Any], Tensors], None]:
    return lambda metadata, tensors: metadata.update(
        {name.replace("__", "."): value for name, value in values.items()}
    )


def shaped(name: str, *shape: int) -> Callable[[dict[str, Any], Tensors], None]:
    return lambda metadata, tensors: tensors.update({name: ("F32", np.zeros(shape))})


WRONG: dict[str, tuple[Callable[[dict[str, Any], Tensors], None], str]] = {
    "another architecture": (having(general__architecture="qwen3"), "gguf.architecture"),
    "no architecture": (without("general.architecture"), "gguf.architecture"),
    "another tokenizer": (having(tokenizer__ggml__model="llama"), "gguf.tokenizer"),
    "another split": (having(tokenizer__ggml__pre="llama-bpe"), "gguf.tokenizer"),
    "no tokens": (without("tokenizer.ggml.tokens"), "gguf.value"),
    "tokens twice": (having(tokenizer__ggml__tokens=["a"] * VOCABULARY), "gguf.value"),
    "fewer types": (having(tokenizer__ggml__token_type=[1, 1]), "gguf.value"),
    "unknown merges": (having(tokenizer__ggml__merges=["ab cd"]), "gguf.value"),
    "an end that is no token": (having(tokenizer__ggml__eos_token_id=10**6), "gguf.value"),
    "no layers": (having(llama__block_count=0), "gguf.value"),
    "more layers": (having(llama__block_count=3), "gguf.tensor"),
    "a billion layers": (having(llama__block_count=10**9), "gguf.value"),
    "fewer layers": (having(llama__block_count=1), "gguf.tensor"),
    "no heads": (having(llama__attention__head_count=0), "gguf.value"),
    "other heads": (having(llama__attention__head_count_kv=4), "gguf.tensor"),
    "heads by layer": (having(llama__attention__head_count_kv=[2, 2]), "gguf.value"),
    "partial rotation": (having(llama__rope__dimension_count=16), "gguf.value"),
    "another scaling": (having(llama__rope__scaling__type="longrope"), "gguf.value"),
    "no epsilon": (without("llama.attention.layer_norm_rms_epsilon"), "gguf.value"),
    "a missing tensor": (without("blk.1.attn_v.weight"), "gguf.tensor"),
    "another tensor": (shaped("rope_freqs.weight", 16), "gguf.tensor"),
    "another shape": (shaped("blk.0.attn_v.weight", 64, 32), "gguf.tensor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_converted_is_refused_with_the_reason(
    tmp_path: Path, name: str
) -> None:
    metadata, tensors = tiny("F16")
    change, code = WRONG[name]
    change(metadata, tensors)
    write(tmp_path / "m.gguf", metadata, tensors)
    assert refusal(tmp_path / "m.gguf", tmp_path / "m") == code


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "BF16"])
def test_another_quantization_is_named(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "m.gguf", *tiny("F16"))
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    at = data.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    data[at : at + 4] = struct.pack("<I", {"Q4_K": 12, "Q6_K": 14, "BF16": 30}[kind])
    (tmp_path / "m.gguf").write_bytes(data)
    with refused(ModelError, "gguf.quantization", type=kind):
        convert(tmp_path / "m.gguf", tmp_path / "m")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGML" + bytes(100), b"GGUF" + b"\xff" * 100])
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    code = refusal(tmp_path / "m.gguf", tmp_path / "m")
    assert code in ("gguf.damaged", "gguf.other_format", "model.truncated")
    assert refusal(tmp_path / "none.gguf", tmp_path / "m") == "gguf.no_file"


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    write(tmp_path / "whole.gguf", *tiny("Q4_0"))
    data, file = (tmp_path / "whole.gguf").read_bytes(), tmp_path / "m.gguf"
    head = data.index(b"blk.0")
    for length in (*range(5, head, head // 40), head + 7, len(data) // 2, len(data) - 40):
        file.write_bytes(data[:length])
        with refused(ModelError, "model.truncated"):
            read_header(file)
    assert refusal(file, tmp_path / "m") == "model.truncated"


def test_a_header_that_lies_is_refused_or_harmless(tmp_path: Path) -> None:
    """Bytes are changed at random; a file that passes all checks is converted."""
    write(tmp_path / "whole.gguf", *tiny("Q4_0"))
    data, file = (tmp_path / "whole.gguf").read_bytes(), tmp_path / "m.gguf"
    start, stop = data.index(b"token_embd.weight") - 8, data.index(b"output.weight") + 60
    places = [*range(4, 24), *range(start, min(stop, start + 1500))]
    rng, passed = random.Random(7), 0  # any other error fails the test
    for _ in range(400):
        changed = bytearray(data)
        changed[rng.choice(places)] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        file.write_bytes(changed)
        try:
            header = read_header(file)
            llama_config(header, check_tokenizer(header.metadata))
        except ModelError:
            continue
        if bytes(changed) != data and passed < 3:
            passed += 1
            convert(file, tmp_path / f"m{passed}")


def test_a_check_that_fails_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", *tiny("Q4_0"))

    def check(folder: Path) -> None:
        assert read_tokenizer(entry(folder)).encode("a")
        raise ModelError("model.not_finite")

    with pytest.raises(ModelError):
        convert(tmp_path / "m.gguf", tmp_path / "models/m", check)
    assert list((tmp_path / "models").iterdir()) == []


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", *tiny("Q4_0"))
    (tmp_path / ".m.converting").mkdir()
    (tmp_path / ".m.converting/model.safetensors").write_bytes(b"half")
    convert(tmp_path / "m.gguf", tmp_path / "m")
    assert {path.name for path in tmp_path.iterdir()} == {"m", "m.gguf"}


def test_a_disk_with_too_little_space_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.gguf", *tiny("Q4_0"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    assert refusal(tmp_path / "m.gguf", tmp_path / "m") == "gguf.no_space"
