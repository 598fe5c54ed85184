"""Tiny encoders with random weights under the names of transformers, and their passes in NumPy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from omlx.models.catalog.registry import ModelEntry

HIDDEN, HEADS, LAYERS, INNER = 32, 4, 3, 48
POSITIONS: Final = 64
WORDS: Final = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a river rises in alps ##s rain no . , x long text about "
    "and where does it rise how"
).split()
WIDE: Final = 6
"""Of the window of ModernBERT's local layers."""
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "bert": {"max_position_embeddings": POSITIONS, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
    "xlm-roberta": {
        "max_position_embeddings": POSITIONS + 2,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    },
    "modernbert": {
        "max_position_embeddings": POSITIONS,
        "norm_eps": 1e-5,
        "local_attention": 2 * WIDE,
        "global_attn_every_n_layers": 3,
        "rope_parameters": {
            "full_attention": {"rope_theta": 5000.0},
            "sliding_attention": {"rope_theta": 300.0},
        },
        "classifier_pooling": "mean",
    },
}
Weights = dict[str, np.ndarray]


def write(
    folder: Path, kind: str, *, labels: int | None = None, config: dict[str, Any] | None = None
) -> ModelEntry:
    """A model directory; with `labels`, one with a classifier."""
    folder.mkdir(parents=True)
    whole = {
        "model_type": kind,
        "vocab_size": len(WORDS),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "hidden_act": "gelu",
        **CONFIGS[kind],
        **(config or {}),
    }
    if labels is not None:
        whole |= {"architectures": ["TinyForSequenceClassification"]}
        whole |= {"id2label": {str(label): f"L{label}" for label in range(labels)}}
    (folder / "config.json").write_text(json.dumps(whole))
    save_file(weights(kind, classifier=labels is not None), folder / "model.safetensors")
    write_tokenizer(folder)
    return ModelEntry(f"e/{folder.name}", folder, "test", model_type=kind)


def declare(entry: ModelEntry, pooling: dict[str, Any], *, normalize: bool) -> ModelEntry:
    """Add the files of sentence-transformers."""
    places = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": path}
        for name, path in places.items()
        if normalize or name != "Normalize"
    ]
    (entry.path / "modules.json").write_text(json.dumps(modules))
    (entry.path / "1_Pooling").mkdir()
    (entry.path / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return entry


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of words, which would cut and pad texts if it were asked to."""
    vocabulary = {word: id for id, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    config = {f"{name}_token": token for name, token in names.items()}
    config |= {"tokenizer_class": "BertTokenizerFast", "model_max_length": POSITIONS}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def ids_of(entry: ModelEntry, text: str, pair: str | None = None) -> tuple[list[int], list[int]]:
    """Ids and types of all tokens of a text or a pair."""
    tokenizer = Tokenizer.from_file(str(entry.path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoded = tokenizer.encode(text, pair)
    return encoded.ids, encoded.type_ids


def weights(kind: str, *, classifier: bool) -> Weights:
    shapes = _modern_shapes() if kind == "modernbert" else _bert_shapes(kind)
    prefix = {"bert": "bert.", "xlm-roberta": "roberta.", "modernbert": "model."}[kind]
    named = {f"{prefix}{name}" if classifier else name: at for name, at in shapes.items()}
    if classifier and kind == "bert":
        named |= _linear("bert.pooler.dense", HIDDEN, HIDDEN) | _linear("classifier", 1, HIDDEN)
    elif classifier and kind == "xlm-roberta":
        named |= _linear("classifier.dense", HIDDEN, HIDDEN)
        named |= _linear("classifier.out_proj", 1, HIDDEN)
    elif classifier:
        named |= {"head.dense.weight": (HIDDEN, HIDDEN), "head.norm.weight": (HIDDEN,)}
        named |= _linear("classifier", 1, HIDDEN)
    random = np.random.default_rng(5)
    return {name: _draw(random, name, shape) for name, shape in named.items()}


def _draw(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    spread = random.normal(size=shape).astype(np.float32)
    if len(shape) == 1:
        return spread * np.float32(0.1) + np.float32("orm" in name and name.endswith("weight"))
    return spread * np.float32(0.6 if "embeddings" in name else 1.5 / math.sqrt(shape[-1]))


def _linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (HIDDEN,), f"{name}.bias": (HIDDEN,)}


def _bert_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    config = CONFIGS[kind]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), HIDDEN),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], HIDDEN),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], HIDDEN),
        **_norm("embeddings.LayerNorm"),
    }
    for i in range(LAYERS):
        at = f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            shapes |= _linear(f"{at}.attention.self.{part}", HIDDEN, HIDDEN)
        shapes |= _linear(f"{at}.attention.output.dense", HIDDEN, HIDDEN)
        shapes |= _norm(f"{at}.attention.output.LayerNorm")
        shapes |= _linear(f"{at}.intermediate.dense", INNER, HIDDEN)
        shapes |= _linear(f"{at}.output.dense", HIDDEN, INNER) | _norm(f"{at}.output.LayerNorm")
    return shapes


def _modern_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.tok_embeddings.weight": (len(WORDS), HIDDEN),
        "embeddings.norm.weight": (HIDDEN,),
        "final_norm.weight": (HIDDEN,),
    }
    for i in range(LAYERS):
        if i:
            shapes[f"layers.{i}.attn_norm.weight"] = (HIDDEN,)
        shapes[f"layers.{i}.attn.Wqkv.weight"] = (3 * HIDDEN, HIDDEN)
        shapes[f"layers.{i}.attn.Wo.weight"] = (HIDDEN, HIDDEN)
        shapes[f"layers.{i}.mlp_norm.weight"] = (HIDDEN,)
        shapes[f"layers.{i}.mlp.Wi.weight"] = (2 * INNER, HIDDEN)
        shapes[f"layers.{i}.mlp.Wo.weight"] = (HIDDEN, INNER)
    return shapes


# -- passes in NumPy, as the papers describe them --------------------------------------------------


def states(kind: str, ids: list[int], types: list[int], *, classifier: bool = False) -> np.ndarray:
    """Hidden states [tokens, hidden] of one text."""
    held = weights(kind, classifier=classifier)
    prefix = {"bert": "bert.", "xlm-roberta": "roberta.", "modernbert": "model."}[kind]
    body = {name.removeprefix(prefix): array.astype(np.float64) for name, array in held.items()}
    if kind == "modernbert":
        return _modern(body, ids)
    sizes = {"model_type": kind, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS}
    return bert(CONFIGS[kind] | sizes, body, ids, types)


def score(kind: str, ids: list[int], types: list[int]) -> float:
    """The classifier's score of one pair, in [0, 1]."""
    held = weights(kind, classifier=True)
    if kind == "xlm-roberta":
        types = [0] * len(ids)
    read = states(kind, ids, types, classifier=True)
    if kind == "bert":
        pooled = np.tanh(_apply(held, "bert.pooler.dense", read[0]))
        logit = _apply(held, "classifier", pooled)
    elif kind == "xlm-roberta":
        hidden = np.tanh(_apply(held, "classifier.dense", read[0]))
        logit = _apply(held, "classifier.out_proj", hidden)
    else:
        hidden = _gelu(read.mean(axis=0) @ held["head.dense.weight"].T)
        logit = _apply(held, "classifier", _normed(hidden, held["head.norm.weight"], 1e-5))
    return float(1 / (1 + np.exp(-logit[0])))


def bert(config: dict[str, Any], body: Weights, ids: list[int], types: list[int]) -> np.ndarray:
    """Hidden states [tokens, hidden] of BERT or XLM-R with the weights `body`."""
    eps, count = config["layer_norm_eps"], len(ids)
    places = np.arange(count)
    if config["model_type"] == "xlm-roberta":
        real = np.array(ids) != config["pad_token_id"]
        places = np.where(real, np.cumsum(real), 0) + config["pad_token_id"]
    x = body["embeddings.word_embeddings.weight"][ids]
    x = x + body["embeddings.position_embeddings.weight"][places]
    x = x + body["embeddings.token_type_embeddings.weight"][types]
    x = _layer_norm(body, "embeddings.LayerNorm", x, eps)
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        parts = (_apply(body, f"{at}.attention.self.{part}", x) for part in _QKV)
        heads = _attention(*(_heads(part, config["num_attention_heads"]) for part in parts))
        x = _layer_norm(
            body,
            f"{at}.attention.output.LayerNorm",
            x + _apply(body, f"{at}.attention.output.dense", heads),
            eps,
        )
        inner = _gelu(_apply(body, f"{at}.intermediate.dense", x))
        x = _layer_norm(
            body, f"{at}.output.LayerNorm", x + _apply(body, f"{at}.output.dense", inner), eps
        )
    return x


_QKV = ("query", "key", "value")


def _modern(body: Weights, ids: list[int]) -> np.ndarray:
    rope = CONFIGS["modernbert"]["rope_parameters"]
    x = _normed(body["embeddings.tok_embeddings.weight"][ids], body["embeddings.norm.weight"], 1e-5)
    distance = np.abs(np.subtract.outer(np.arange(len(ids)), np.arange(len(ids))))
    for i in range(LAYERS):
        at, local = f"layers.{i}", i % 3 != 0
        theta = rope["sliding_attention" if local else "full_attention"]["rope_theta"]
        normed = _normed(x, body[f"{at}.attn_norm.weight"], 1e-5) if i else x
        q, k, v = map(_heads, np.split(normed @ body[f"{at}.attn.Wqkv.weight"].T, 3, axis=-1))
        mask = np.where(distance <= WIDE, 0.0, -1e9) if local else 0.0
        x = x + _attention(_rotated(q, theta), _rotated(k, theta), v, mask) @ (
            body[f"{at}.attn.Wo.weight"].T
        )
        inner = _normed(x, body[f"{at}.mlp_norm.weight"], 1e-5) @ body[f"{at}.mlp.Wi.weight"].T
        gated, gate = np.split(inner, 2, axis=-1)
        x = x + (_gelu(gated) * gate) @ body[f"{at}.mlp.Wo.weight"].T
    return _normed(x, body["final_norm.weight"], 1e-5)


def _apply(held: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ held[f"{name}.weight"].T + held[f"{name}.bias"]


def _layer_norm(body: Weights, name: str, x: np.ndarray, eps: float) -> np.ndarray:
    return _normed(x, body[f"{name}.weight"], eps) + body[f"{name}.bias"]


def _normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _heads(x: np.ndarray, count: int = HEADS) -> np.ndarray:
    return x.reshape(len(x), count, -1).transpose(1, 0, 2)


def _rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotary positions, the halves of a head as real and imaginary parts."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[1]), theta ** (-np.arange(half) / half))
    a, b = x[..., :half], x[..., half:]
    turned = (a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles))
    return np.concatenate(turned, axis=-1)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any = 0.0) -> np.ndarray:
    """Heads [heads, tokens, width] to [tokens, hidden]."""
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]) + mask
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return (shares @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)
