"""GGUF architecture `llama`: config, tensor names and shapes, byte-level BPE tokenizer.

llama.cpp stores query and key rows in pairs, for a rotation of neighbours; mlx-lm rotates halves.
`tokenizer.ggml.pre` names the pre-tokenization rule, defined in llama.cpp's source. Unknown rules
are refused, as token ids would differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from omlx.errors import ModelError
from omlx.models.gguf.header import Header

ARCHITECTURE: Final = "llama"
SCALINGS: Final = ("none", "linear", "yarn")

_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_TOKENS: Final = "tokenizer.ggml."
_BPE: Final = "gpt2"
_DIGITS: Final = frozenset({"smollm"})
"""Rules that split digits one by one, then like GPT-2."""
_SPECIAL, _USER = 3, 4
"""Types of tokens that merges never produce."""
_PAIRED: Final = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}


def llama_config(header: Header, vocab_size: int) -> dict[str, Any]:
    """Return the model's config for mlx-lm.

    Raises ModelError for another architecture, and for tensors that contradict the config.
    """
    values = header.metadata
    architecture = values.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise ModelError("gguf.architecture", architecture=str(architecture), known=ARCHITECTURE)
    hidden, heads = _count(values, "embedding_length"), _count(values, "attention.head_count")
    head_dim = _count(values, "attention.key_length", hidden // heads)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": _count(values, "feed_forward_length"),
        "num_hidden_layers": _count(values, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _count(values, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": _number(values, "attention.layer_norm_rms_epsilon", None),
        "vocab_size": vocab_size,
        "max_position_embeddings": _count(values, "context_length"),
        "rope_theta": _number(values, "rope.freq_base", 10_000.0),
        "rope_scaling": _scaling(values),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": False,
        "mlp_bias": False,
    }
    for key, expected in (("rope.dimension_count", head_dim), ("attention.value_length", head_dim)):
        if _count(values, key, expected) != expected:
            raise _unexpected(key, values[f"{ARCHITECTURE}.{key}"])
    _check_tensors(header, config)
    return config


def mlx_name(name: str) -> str:
    """Return mlx-lm's name of a tensor, or of its scales or biases."""
    module, _, kind = name.rpartition(".")
    if module in _OUTER:
        return f"{_OUTER[module]}.{kind}"
    _, layer, module = module.split(".")
    return f"model.layers.{layer}.{_LAYER[module]}.{kind}"


def paired_heads(name: str, config: Mapping[str, Any]) -> int:
    """Return the number of heads if the tensor has rows in pairs, else 0."""
    module = name.rsplit(".", 2)[-2]
    return int(config[_PAIRED[module]]) if module in _PAIRED else 0


def _check_tensors(header: Header, config: Mapping[str, Any]) -> None:
    layers = config["num_hidden_layers"]
    if layers > len(header.tensors):
        raise _unexpected("block_count", layers)
    shapes = _shapes(config)
    for name in sorted(shapes.keys() ^ header.tensors.keys()):
        detail = "missing" if name in shapes else "unknown"
        raise ModelError("gguf.tensor", tensor=name, detail=detail)
    for name, shape in shapes.items():
        found = header.tensors[name].shape
        if found != shape:
            raise ModelError("gguf.tensor", tensor=name, detail=f"{found} ≠ {shape}")


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, rows first, by its name in the file."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    outer = {"token_embd": (config["vocab_size"], hidden), "output_norm": (hidden,)}
    if not config["tie_word_embeddings"]:
        outer["output"] = outer["token_embd"]
    shapes = {f"{name}.weight": shape for name, shape in outer.items()}
    for number in range(config["num_hidden_layers"]):
        shapes |= {f"blk.{number}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def _scaling(values: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = values.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if kind not in SCALINGS:
        raise _unexpected("rope.scaling.type", kind)
    if kind == "none":
        return None
    factor = _number(values, "rope.scaling.factor", None)
    scaling: dict[str, Any] = {"rope_type": kind, "type": kind, "factor": factor}
    original = f"{ARCHITECTURE}.rope.scaling.original_context_length"
    if original in values:
        scaling["original_max_position_embeddings"] = values[original]
    return scaling


def _count(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(f"{ARCHITECTURE}.{key}", default)
    if type(value) is not int or value <= 0:
        raise _unexpected(key, value)
    return value


def _number(values: Mapping[str, Any], key: str, default: float | None) -> float:
    value = values.get(f"{ARCHITECTURE}.{key}", default)
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise _unexpected(key, value)
    return float(value)


def _unexpected(key: str, value: object) -> ModelError:
    return ModelError("gguf.value", key=f"{ARCHITECTURE}.{key}", value=str(value)[:100])


def check_tokenizer(metadata: Mapping[str, Any]) -> int:
    """Return the number of tokens. Raises ModelError for an unsupported tokenizer."""
    model, rule = metadata.get(f"{_TOKENS}model"), metadata.get(f"{_TOKENS}pre")
    if model != _BPE or rule not in _DIGITS:
        known = ", ".join(f"{_BPE}/{rule}" for rule in sorted(_DIGITS))
        raise ModelError("gguf.tokenizer", tokenizer=f"{model}/{rule}", known=known)
    tokens, merges, types = (_list(metadata, name) for name in ("tokens", "merges", "token_type"))
    if not tokens or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise ModelError("gguf.value", key=f"{_TOKENS}tokens", value=f"{len(tokens)}, {len(types)}")
    vocabulary = set(tokens)
    for merge in merges:
        first, _, second = str(merge).partition(" ")
        if not {first, second, first + second} <= vocabulary:
            raise ModelError("gguf.value", key=f"{_TOKENS}merges", value=str(merge)[:100])
    for name in ("bos", "eos", "padding", "unknown"):
        token = metadata.get(f"{_TOKENS}{name}_token_id", 0)
        if type(token) is not int or not 0 <= token < len(tokens):
            raise ModelError("gguf.value", key=f"{_TOKENS}{name}_token_id", value=str(token)[:100])
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

    tokens: list[str] = metadata[f"{_TOKENS}tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata[f"{_TOKENS}merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = zip(tokens, metadata[f"{_TOKENS}token_type"], strict=True)
    added = [(token, kind) for token, kind in types if kind in (_SPECIAL, _USER)]
    tokenizer.add_tokens(
        [AddedToken(token, special=kind == _SPECIAL, normalized=False) for token, kind in added]
    )
    options: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        token = metadata.get(f"{_TOKENS}{key}_token_id")
        if token is not None:
            options[f"{name}_token"] = tokens[token]
    made: Any = PreTrainedTokenizerFast
    fast = made(tokenizer_object=tokenizer, **options)
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        fast.chat_template = template
    fast.save_pretrained(directory)


def _list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"{_TOKENS}{name}")
    if not isinstance(value, list):
        raise ModelError("gguf.value", key=f"{_TOKENS}{name}", value=str(value)[:100])
    return value
