"""Fixed prompts: what a model is inspected, and the engine measured, with.

`edit`: repeat or change a short function; most of the answer stands in the prompt, so drafts are
mostly accepted. `open`: questions whose answers are not in the prompt; here sampling makes draft
and target part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from omlx.measure.texts import read_sections

WORKLOADS: Final = ("edit", "open")

Message = dict[str, Any]


def prompts(workload: str) -> tuple[str, ...]:
    """Return the prompts of one of the `WORKLOADS`."""
    return read_sections(f"{workload}.txt")


def encode(tokenizer: Any, workload: str = "edit") -> list[tuple[int, ...]]:
    """Return the token ids of a workload's prompts, by mlx-lm's tokenizer wrapper."""
    encoded = []
    for prompt in prompts(workload):
        encoded.append(encode_chat(tokenizer, [{"role": "user", "content": prompt}]))
    return encoded


def encode_chat(
    tokenizer: Any, messages: Sequence[Message], **template_arguments: Any
) -> tuple[int, ...]:
    """Return the token ids of a conversation with its generation prompt.

    A model without a chat template reads the texts one after another.
    """
    if not tokenizer.has_chat_template:
        text = "\n\n".join(message["content"] for message in messages)
        return tuple(tokenizer.encode(text))
    return tuple(
        tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **template_arguments,
        )
    )
