"""Real chat templates of popular models, each with a real tokenizer: that of the bundled model with
the markers of the template's family as tokens.

`make templates` fetches the templates: they are not part of this repository.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from mlx_lm.chat_templates import muse_spark
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".cache/templates"
BASE: Final = ROOT / "omlx/bundled/omlx-demo/target"

TEMPLATES: Final = (
    "Apertus-8B-Instruct",
    "Apriel-1.6-15b-Thinker-fixed",
    "Bielik-11B-v3.0-Instruct",
    "ByteDance-Seed-OSS",
    "Cohere2MoE",
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "GLM-4.6",
    "GLM-4.7-Flash",
    "GigaChat3-10B-A1.8B",
    "GigaChat3.1-10B-A1.8B",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Instruct",
    "Kimi-K2-Thinking",
    "Kimi-K3",
    "LFM2-8B-A1B",
    "LFM2.5-8B-A1B",
    "LFM2.5-Instruct",
    "MiMo-VL",
    "MiniMax-M1",
    "MiniMax-M2",
    "MiniMax-M3",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "NVIDIA-Nemotron-Nano-v2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "Reka-Edge",
    "Spark2.5",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
    "deepseek-ai-DeepSeek-V4",
    "deepseek-ai-DeepSeek-V4-Flash-0731",
    "fireworks-ai-llama-3-firefunction-v2",
    "google-gemma-2-2b-it",
    "google-gemma-4-31B-it",
    "google-gemma-4-31B-it-interleaved",
    "ibm-granite-granite-3.3-2B-Instruct",
    "ibm-granite-granite-4.0",
    "ibm-granite-granite-4.1",
    "inclusionai-ling-3.0-flash",
    "llama-cpp-deepseek-r1",
    "llama-cpp-rwkv-world",
    "meetkai-functionary-medium-v3.1",
    "meetkai-functionary-medium-v3.2",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "moonshotai-Kimi-K2",
    "muse-glimmer",
    "openai-gpt-oss-120b",
    "openbmb-MiniCPM5-1B",
    "poolside-Laguna-S-2.1",
    "poolside-Laguna-XS-2.1",
    "poolside-Laguna-XS.2",
    "tencent-Hy3",
    "unsloth-Apriel-1.5",
    "unsloth-mistral-Devstral-Small-2507",
    "upstage-Solar-Open-100B",
)
"""Names of the template files, without `.jinja`."""

_SPECIAL: Final = re.compile(
    r"""
    <\|[^<>|\s"']+\|?>              # <|eot_id|>
    | <[^<>|\s"']+\|>
    | <\|"\|>
    | <｜[^<>\s"']+｜>               # <｜User｜>
    | \[/?[A-Z_]{3,}\]              # [TOOL_CALLS]
    | </?seed:\w+> | </?mm:think> | <SPECIAL_\d+> | <(?:start|end)_of_turn>
    """,
    re.VERBOSE,
)
_TAGS: Final = (
    *("think", "tool_call", "tool_response", "tool_calls", "arg_key", "arg_value"),
    *("minimax:tool_call", "TOOLCALL", "TOOL_RESPONSE", "AVAILABLE_TOOLS", "tool_sep"),
)
"""Tags that are tokens wherever a template has them, but in the families of `_TEXTS`."""
_TEXTS: Final = {"Apertus", "Apriel", "granite-3.3", "MiniMax-M1", "rwkv"}
_FURTHER: Final = {
    "MiniMax-M2": ("]~b]", "]~!b[", "[e~["),
    "MiniMax-M3": ("]<]minimax[>[", "]~b]", "]~!b[", "[e~["),
    "MiniCPM5": ("</function>", "</param>"),
    "MiMo": ("<think>", "</think>"),
    "LFM2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "meta-llama": ("<|python_tag|>",),
}
"""Tokens of families that their templates do not write out."""


_ENDS: Final = {
    "Command": "<|END_OF_TURN_TOKEN|>",
    "Cohere": "<|END_OF_TURN_TOKEN|>",
    "meta-llama": "<|eot_id|>",
    "ling": "<|role_end|>",
    "meetkai": "<|eot_id|>",
}
"""Tokens that end an answer, where a test depends on it."""


def read(file: str) -> str:
    """Return the text of a fetched file. Without it the test is skipped, or fails in CI."""
    path = FOLDER / file
    if not path.exists():
        reason = f"no {file}: `make templates` fetches it"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path.read_text(encoding="utf-8")


@cache
def tokenizer(name: str) -> TokenizerWrapper:
    """Return a tokenizer with the chat template `name`, as mlx-lm loads it."""
    with TemporaryDirectory() as folder:
        write_tokenizer(name, Path(folder))
        loaded = load(Path(folder))
    for family, token in _ENDS.items():
        if family in name:
            loaded.add_eos_token(token)
    if name.startswith("muse"):
        loaded._response_format = muse_spark.RESPONSE_FORMAT
    return loaded


def write_tokenizer(name: str, folder: Path) -> None:
    """Write the files of a tokenizer with the chat template `name`."""
    template = read(f"{name}.jinja")
    body = json.loads((BASE / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((BASE / "tokenizer_config.json").read_text(encoding="utf-8"))
    _add_tokens(body, markers(name, template))
    (folder / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    config |= {"chat_template": template, "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def markers(name: str, template: str) -> list[str]:
    """Return the markers of a template that its family's vocabulary has as tokens."""
    template = template.replace("{}", ":opensource")  # what Hy3 puts into all of its markers
    found = set(_SPECIAL.findall(template))
    if not any(text in name for text in _TEXTS):
        tags = [tag for word in _TAGS for tag in (f"<{word}>", f"</{word}>")]
        found.update(tag for tag in tags if tag in template)
    for family, tokens in _FURTHER.items():
        if family in name:
            found.update(tokens)
    for tag in list(found):
        if tag.startswith("</") and tag.replace("</", "<", 1) in template:
            found.add(tag.replace("</", "<", 1))
    return sorted(found)


def _add_tokens(body: dict[str, Any], wanted: list[str]) -> None:
    """Add tokens to a tokenizer's file, and take away markers of the bundled model that the family
    does not have.
    """
    known = {token["content"]: token for token in body["added_tokens"]}
    for content, token in known.items():
        if not token["special"] and content not in wanted:
            token["content"] = f"<|unused {token['id']}|>"
    size = 1 + max(*body["model"]["vocab"].values(), *(token["id"] for token in known.values()))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    fresh = [content for content in wanted if content not in known]
    body["added_tokens"] += [
        {"id": size + i, "content": content, "special": True, **flags}
        for i, content in enumerate(fresh)
    ]
