"""Tiny rerankers with random weights, and what plain mlx-lm says of one pair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import save_config
from tokenizers import Tokenizer

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from tests.server.running import TARGET

CONTEXT: Final = 1024
CONFIG: Final[dict[str, Any]] = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 2064,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "max_position_embeddings": CONTEXT,
}
PREFIX: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
    'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
SUFFIX: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
WEB: Final = "Given a web search query, retrieve relevant passages that answer the query"
TEMPLATE: Final = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)
YES_NO: Final = (12, 7)
"""Ids of the declared model."""


def write(folder: Path, *, words: bool = True, context: int = CONTEXT) -> ModelEntry:
    """A tiny model with the demo's tokenizer, in which yes and no are tokens if `words`."""
    folder.mkdir()
    for file in (BUNDLED / TARGET).glob("tokenizer*"):
        shutil.copy(file, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if words:
        tokenizer.add_tokens(["yes", "no"])
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    model = build()
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    save_config(CONFIG | {"max_position_embeddings": context}, folder / "config.json")
    return ModelEntry(f"t/{folder.name}", folder, "test")


def declare(entry: ModelEntry, score: dict[str, Any], instruction: str | None = None) -> ModelEntry:
    """Add the files of sentence-transformers and a chat template for the pair."""
    modules = [
        {"type": "sentence_transformers.base.modules.transformer.Transformer", "path": ""},
        {
            "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
            "path": "1_LogitScore",
        },
    ]
    (entry.path / "modules.json").write_text(json.dumps(modules))
    (entry.path / "1_LogitScore").mkdir()
    (entry.path / "1_LogitScore/config.json").write_text(json.dumps(score))
    (entry.path / "chat_template.jinja").write_text(TEMPLATE)
    if instruction is not None:
        settings = {"prompts": {"search": instruction}, "default_prompt_name": "search"}
        (entry.path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return entry


def build() -> qwen3.Model:
    mx.random.seed(3)
    return qwen3.Model(qwen3.ModelArgs.from_dict(CONFIG))


def plain_score(ids: list[int], yes: int, no: int) -> float:
    """The score after one pass over the whole prompt, alone."""
    model = build()
    logits = model(mx.array([ids]), cache=make_prompt_cache(model))[0, -1].astype(mx.float32)
    return float(mx.softmax(mx.stack([logits[no], logits[yes]]))[1].item())


def qwen_score(entry: ModelEntry, query: str, document: str, instruction: str = WEB) -> float:
    """The score as the model's authors compute it: prefix, pair and suffix are encoded apart."""
    tokenizer = Tokenizer.from_file(str(entry.path / "tokenizer.json"))
    pair = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    ids = []
    for text in (PREFIX, pair, SUFFIX):
        ids += tokenizer.encode(text, add_special_tokens=False).ids
    yes, no = (tokenizer.token_to_id(word) for word in ("yes", "no"))
    return plain_score(ids, yes, no)


def declared_score(entry: ModelEntry, query: str, document: str, instruction: str) -> float:
    """The score after the prompt that the chat template makes."""
    tokenizer = Tokenizer.from_file(str(entry.path / "tokenizer.json"))
    text = f"[system]{instruction}\n[query]{query}\n[document]{document}\n[answer]"
    return plain_score(tokenizer.encode(text, add_special_tokens=False).ids, *YES_NO)
