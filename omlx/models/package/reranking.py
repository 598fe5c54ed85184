"""How a model judges a document: by which tokens, and after what prompt; or by a classifier.

Declared in the files of sentence-transformers, or known of Qwen3-Reranker by its name, as its
conversions lack these files. An encoder with a classifier judges a pair without a prompt.

modules.json                        Transformer and LogitScore, in this order
1_LogitScore/config.json            the two tokens
config_sentence_transformers.json   the default instruction
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from omlx.errors import BadRequest
from omlx.models.catalog.encoders import is_classifier
from omlx.models.catalog.model_config import read_config
from omlx.models.package.modules import module_kinds, read_modules

_KINDS: Final = ["Transformer", "LogitScore"]
_TYPES: Final = "type_vocab_size"
_QWEN: Final = re.compile(r"qwen3[-_.]?reranker", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reranking:
    """`tokens`: the ids of yes and no; None for Qwen3-Reranker as released, whose prompt is known.

    A declared model has its prompt in its chat template. `instruction` is its default one, if any.
    `segments`: an encoder that marks which tokens are those of the document.
    """

    tokens: tuple[int, int] | None = None
    instruction: str | None = None
    segments: bool = False


def is_reranker(directory: Path, model: str) -> bool:
    """Return whether a model judges documents. Reads modules.json and config.json; raises
    ModelError.
    """
    if is_classifier(read_config(directory, "config.json")):
        return True
    kinds = module_kinds(read_modules(directory))
    return kinds == _KINDS or (not kinds and _QWEN.search(model) is not None)


def reranking(directory: Path, model: str) -> Reranking:
    """Return how a model judges documents.

    Raises BadRequest for a model that does not, or by a single token; ModelError for files that
    cannot be read.
    """
    if not is_reranker(directory, model):
        raise BadRequest("rerank.undeclared", param="model", model=model)
    config = read_config(directory, "config.json")
    if is_classifier(config):
        return Reranking(segments=config["model_type"] == "bert" and config.get(_TYPES) != 1)
    modules = read_modules(directory)
    if not modules:
        return Reranking()
    score = read_config(directory, f"{modules[1].get('path') or '1_LogitScore'}/config.json")
    yes, no = score.get("true_token_id"), score.get("false_token_id")
    if not isinstance(yes, int) or not isinstance(no, int):
        raise BadRequest("rerank.tokens", param="model", model=model)
    return Reranking((yes, no), _default_instruction(directory))


def _default_instruction(directory: Path) -> str | None:
    config = read_config(directory, "config_sentence_transformers.json")
    prompts, name = config.get("prompts"), config.get("default_prompt_name")
    instruction = prompts.get(name) if isinstance(prompts, dict) else None
    return instruction if isinstance(instruction, str) else None
