"""Facts of a model's files: context, abilities, pooling, reranking, identity.

sentence-transformers' files: modules.json (Transformer; Pooling and perhaps Normalize, or
LogitScore), 1_Pooling/config.json (the pooled hidden states), 1_LogitScore/config.json (the tokens
of yes and no), config_sentence_transformers.json (the default instruction). Qwen3-Reranker is
recognized by name, as its conversions lack these. Encoders with a classifier rerank without a
prompt.

The identity is hashes of the files that tokens depend on, and versions of libraries.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal

from omlx.errors import BadRequest, ModelError, Reason, StageError
from omlx.models.catalog.config import context_length, encoder_window, longest_context
from omlx.models.catalog.files import (
    ADAPTER,
    ADAPTER_CONFIG,
    CONFIG,
    PROCESSOR_CONFIG,
    TOKENIZER_CONFIG,
    ModelFiles,
    once,
    whole_header,
)
from omlx.models.catalog.registry import ModelEntry
from omlx.models.library.choose import choose, is_classifier, is_encoder
from omlx.settings.schema import Settings
from omlx.text.reasoning import FAMILIES, THINK

MODULES: Final = "modules.json"
_GROUP_SIZE: Final = 64
"""Quantized values per scale — default where a config does not say."""
_TOOLS: Final = re.compile(r"\btools\b")
_REASONING: Final = (*FAMILIES, (THINK.opens, THINK.closes), ("<|channel>",), ("<|channel|>",))
"""Text groups that mark chat templates of reasoning models: all texts of a group must occur."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model: `context_length` in tokens, `created` in seconds since 1970.

    A user may raise the context to `longest_context`.

    `tools` and `reasoning` are abilities of the chat template; `generates` is False for encoders.
    """

    context_length: int
    longest_context: int
    tools: bool = False
    reasoning: bool = False
    embeddings: bool = False
    reranks: bool = False
    generates: bool = True
    created: int = 0


@once
def model_facts(files: ModelFiles, model: str) -> ModelFacts:
    """Return the facts of a model; facts from unreadable files keep their defaults."""
    config: Mapping[str, Any] = {}
    template, limit, reranks = "", 0.0, False
    with suppress(ModelError):  # of each file: loading shows the reason
        config = files.config
    with suppress(ModelError):
        template = "\n".join(files.templates().values())
    with suppress(ModelError):
        declared = files.json(TOKENIZER_CONFIG).get("model_max_length")
        limit = declared if isinstance(declared, int | float) else 0
    context, longest = context_length(config, limit), longest_context(config, limit)
    with suppress(ModelError):
        reranks = is_reranker(files, model)
        if is_encoder(config):
            context = longest = encoder_window(files) or context
    return ModelFacts(
        context_length=context,
        longest_context=longest,
        tools=_TOOLS.search(template) is not None,
        reasoning=any(all(text in template for text in texts) for texts in _REASONING),
        embeddings=(files.directory / MODULES).exists() and not reranks,
        reranks=reranks,
        generates=not is_encoder(config),
        created=files.created,
    )


@once
def is_whole(files: ModelFiles) -> bool:
    """Return whether all weights are complete and readable. Reads headers once."""
    try:
        for file in files.weights:
            whole_header(file)
    except ModelError:  # the reason is shown when the model is loaded
        return False
    return True


@once
def parameters(files: ModelFiles) -> int | None:
    """Return the number of parameters; None for unreadable files. Reads headers once."""
    try:
        quantization = files.config.get("quantization")
        size = quantization.get("group_size") if isinstance(quantization, Mapping) else None
        return files.tensors.parameters(size if isinstance(size, int) else _GROUP_SIZE)
    except ModelError:  # the reason is shown when the model is loaded
        return None


def _modules(files: ModelFiles) -> list[dict[str, Any]]:
    """Return sentence-transformers' modules, none without a readable file."""
    try:
        content = json.loads((files.directory / MODULES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(content, list):
        return []
    return [module for module in content if isinstance(module, dict)]


def _kinds(modules: Sequence[dict[str, Any]]) -> list[str]:
    """Return class names, such as `Pooling`."""
    return [str(module.get("type", "")).rpartition(".")[2] for module in modules]


PoolingMode = Literal["cls", "last", "mean"]

_CAUSAL: Final[dict[str, PoolingMode]] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
_ENCODER: Final[dict[str, PoolingMode]] = {**_CAUSAL, "pooling_mode_cls_token": "cls"}
"""The first token of a causal model has seen no other."""
_DECLARED: Final = "pooling_mode"
_NAMED: Final = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}


@dataclass(frozen=True, slots=True)
class Pooling:
    mode: PoolingMode
    normalize: bool  # vectors have length 1


def pooling(entry: ModelEntry) -> Pooling:
    """Return the pooling of a model.

    Raises BadRequest if undeclared or unsupported, ModelError for unreadable files.
    """
    files, model = entry.files, entry.id
    modules = _modules(files)
    kinds = _kinds(modules)
    if not modules:
        raise BadRequest("embedding.undeclared", param="model", model=model)
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise BadRequest("embedding.modules", param="model", model=model, modules=", ".join(kinds))
    config = files.json(f"{modules[1].get('path') or '1_Pooling'}/{CONFIG}")
    modes = [
        name for name, value in config.items() if name.startswith(f"{_DECLARED}_") and value is True
    ]
    declared = config.get(_DECLARED)  # of newer versions, in place of one flag per mode
    if not modes and isinstance(declared, str):
        modes = [_NAMED.get(declared, f"{_DECLARED}_{declared}")]
    supported = _ENCODER if is_encoder(files.config) else _CAUSAL
    if len(modes) != 1 or modes[0] not in supported:
        listed = ", ".join(modes) or "none"
        raise BadRequest("embedding.pooling", param="model", model=model, modes=listed)
    return Pooling(supported[modes[0]], "Normalize" in kinds)


_SCORED: Final = ["Transformer", "LogitScore"]
_TYPES: Final = "type_vocab_size"
_QWEN: Final = re.compile(r"qwen3[-_.]?reranker", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reranking:
    """Reranking parameters: `tokens` are the ids of yes and no.

    `tokens` is None for Qwen3-Reranker as released, whose prompt is known; other models have their
    prompt in the chat template. `instruction` is the declared default. `segments`: the encoder
    marks document tokens with a segment id.
    """

    tokens: tuple[int, int] | None = None
    instruction: str | None = None
    segments: bool = False


def is_reranker(files: ModelFiles, model: str) -> bool:
    """Return whether a model reranks. Reads modules.json and config.json; raises ModelError."""
    if is_classifier(files.config):
        return True
    kinds = _kinds(_modules(files))
    return kinds == _SCORED or (not kinds and _QWEN.search(model) is not None)


def reranking(entry: ModelEntry) -> Reranking:
    """Return how a model reranks.

    Raises BadRequest for other models, or without two single answer tokens; ModelError for
    unreadable files.
    """
    files, model = entry.files, entry.id
    if not is_reranker(files, model):
        raise BadRequest("rerank.undeclared", param="model", model=model)
    config = files.config
    if is_classifier(config):
        return Reranking(segments=config["model_type"] == "bert" and config.get(_TYPES) != 1)
    modules = _modules(files)
    if not modules:
        return Reranking()
    score = files.json(f"{modules[1].get('path') or '1_LogitScore'}/{CONFIG}")
    yes, no = score.get("true_token_id"), score.get("false_token_id")
    if not isinstance(yes, int) or not isinstance(no, int):
        raise BadRequest("rerank.tokens", param="model", model=model)
    config = files.json("config_sentence_transformers.json")
    prompts, name = config.get("prompts"), config.get("default_prompt_name")
    instruction = prompts.get(name) if isinstance(prompts, dict) else None
    return Reranking((yes, no), instruction if isinstance(instruction, str) else None)


_SAMPLE: Final = 64 << 10
"""Bytes hashed at the start (most of the header) and in the middle."""

_LIBRARIES: Final = ("mlx", "mlx-lm", "mlx-vlm")
"""Distributions that compute logits."""

_TOKENIZER_FILES: Final = ("tokenizer*", "vocab*", "merges.txt", "added_tokens.json", "*.model")
_TEMPLATES: Final = ("chat_template*", "additional_chat_templates/*")


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Hashes of the files that a model's tokens depend on.

    `dtype` is the setting, `library` has the model's classes, `kv_bits` are those of quantized KV
    caches.
    """

    weights: str = ""
    tokenizer: str = ""
    template: str = ""
    dtype: str = ""
    library: str = ""
    kv_bits: str = ""


def model_identity(directory: Path, settings: Settings) -> ModelIdentity:
    """Hash weights by fingerprint, small files entirely.

    A chat template inside the tokenizer's config counts as template alone. Raises OSError,
    ModelError.
    """
    files = ModelFiles.at(directory)
    trusted, library = settings.trust_remote_code, settings.library
    classes = choose(files.config, trusted=trusted, library=library)
    config = files.json(TOKENIZER_CONFIG)
    template = config.pop("chat_template", None)
    template = template or files.json(PROCESSOR_CONFIG).get("chat_template")
    tokenizer = _contents(directory, _TOKENIZER_FILES) | {TOKENIZER_CONFIG: digest(config)}
    return ModelIdentity(
        weights=digest(fingerprint(directory)),
        tokenizer=digest(tokenizer),
        template=digest([template, _contents(directory, _TEMPLATES)]),
        dtype=settings.dtype,
        library="" if isinstance(classes, Reason) else classes.library,
    )


def versions() -> dict[str, str]:
    """Return the versions of installed libraries that compute."""
    found = {}
    for package in _LIBRARIES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, with sets sorted."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=sorted)
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(directory: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the hashes of matching files, by name."""
    paths = {path for pattern in patterns for path in directory.glob(pattern) if path.is_file()}
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def fingerprint(directory: Path) -> dict[str, str]:
    """Hash config, weights and adapter, by file: size, first and middle bytes.

    Raises ModelError without weights.
    """
    hashes = {}
    files = ModelFiles.at(directory)
    adapter = [directory / name for name in (ADAPTER_CONFIG, ADAPTER) if files.has(name)]
    for file in (directory / CONFIG, *files.weights, *adapter):
        digest, size = hashlib.sha256(), file.stat().st_size
        with file.open("rb") as stream:
            digest.update(size.to_bytes(8, "big") + stream.read(_SAMPLE))
            stream.seek(max(0, size // 2 - _SAMPLE // 2))
            digest.update(stream.read(_SAMPLE))
        hashes[file.name] = digest.hexdigest()[:16]
    return hashes


def check_same(model: str, leader: Mapping[str, str], follower: Mapping[str, str]) -> None:
    """Raise StageError for the first file that differs between the machines."""
    for file in sorted({*leader, *follower}):
        ours, theirs = leader.get(file, "missing"), follower.get(file, "missing")
        if ours != theirs:
            raise StageError("stage.files", model=model, file=file, leader=ours, follower=theirs)
