"""Fields of other servers' APIs that have no effect here: the answer has one warning for them.

Each is listed with the values that request nothing. docs/api.md has them in a table, with those
that concern no answer (`metadata`), about which there is no warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from omlx.errors import Reason

_KEPT: Final = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
"""What Claude Code sends with every request: nothing is cleared."""
_OPENAI: Final[Mapping[str, Sequence[object]]] = {
    "background": (False,),
    "context_management": ([], {}, _KEPT),
    "max_tool_calls": (),
    "priority": (0,),
    "service_tier": ("auto", "default", "standard", "standard_only"),
    "store": (False,),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_ANTHROPIC: Final[Mapping[str, Sequence[object]]] = {
    "container": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
}
_OLLAMA: Final[Mapping[str, Sequence[object]]] = {"shift": (False,), "truncate": (False,)}
_VLLM: Final[Mapping[str, Sequence[object]]] = {
    "add_special_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": ("",),
    "documents": ([],),
    "early_stopping": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structural_tag": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
_LLAMA_CPP: Final[Mapping[str, Sequence[object]]] = {
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "id_slot": (-1,),
    "lora": ([],),
    "mirostat": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "parse_tool_calls": (True,),
    "reasoning_format": ("auto", "deepseek"),
    "repeat_last_n": (),
    "repeat_penalty": (1,),
    "samplers": ([],),
    "t_max_predict_ms": (0,),
    "top_n_sigma": (-1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
}
_OTHERS: Final[Mapping[str, Sequence[object]]] = {
    "adapters": ("",),
    "enable_thinking": (),
    "models": ([],),
    "plugins": ([],),
    "provider": ({},),
    "random_seed": (),
    "reasoning": ({},),
    "safe_prompt": (False,),
    "thinking": ({"type": "adaptive"},),
    "transforms": ([],),
}
"""Of mlx-lm, OpenRouter, Mistral, DeepSeek and DashScope."""

WITHOUT_EFFECT: Final[Mapping[str, Sequence[object]]] = {
    **_OPENAI,
    **_ANTHROPIC,
    **_OLLAMA,
    **_VLLM,
    **_LLAMA_CPP,
    **_OTHERS,
}


def without_effect(given: Mapping[str, Any] | None) -> tuple[Reason, ...]:
    """Return the warning about fields that request something and have no effect, if any."""
    names = [
        name
        for name, value in (given or {}).items()
        if name in WITHOUT_EFFECT and value is not None and value not in WITHOUT_EFFECT[name]
    ]
    if not names:
        return ()
    return (Reason("request.without_effect", {"fields": ", ".join(names), "count": len(names)}),)
