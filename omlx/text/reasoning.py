"""Reasoning formats: by a model's chat template, else by mlx-lm's guess from the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlx.engine.vision.spans import words
from omlx.text import harmony
from omlx.text.filters import (
    CONTENT,
    HEADER,
    REASONING,
    TOOL,
    ChannelSplitter,
    ReasoningSplitter,
    Splitter,
)
from omlx.text.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """Markers around the reasoning of a model; without `opens` the model has none."""

    opens: str = ""
    closes: str = ""
    ends: tuple[str, ...] = ()  # markers that end reasoning too, and belong to the text behind
    # The markers are special tokens: reasoning may follow content, and a marker without its partner
    # is dropped.
    repeats: bool = False
    dropped: tuple[str, ...] = ()  # further markers without meaning for a reader
    others: tuple[str, ...] = ()  # further markers with which prompts open reasoning
    # Markers dropped only at the beginning and the end of an answer.
    answer: tuple[str, str] = ("", "")


THINK: Final = ReasoningFormat(opens="<think>", closes="</think>")

FAMILIES: Final[Mapping[tuple[str, ...], ReasoningFormat]] = {
    ("[THINK]", "[/THINK]"): ReasoningFormat(opens="[THINK]", closes="[/THINK]", repeats=True),
    ("<seed:think>",): ReasoningFormat(
        opens="<seed:think>", closes="</seed:think>", repeats=True, dropped=("<seed:eos>",)
    ),
    ("<mm:think>",): ReasoningFormat(opens="<mm:think>", closes="</mm:think>", repeats=True),
    ("<think{}>", "':opensource'"): ReasoningFormat(
        opens="<think:opensource>", closes="</think:opensource>", repeats=True
    ),
    ("<ifm|think>", "</ifm|think>"): ReasoningFormat(
        opens="<ifm|think>",
        closes="</ifm|think>",
        others=("<ifm|think_fast>", "<ifm|think_faster>"),
        ends=("</ifm|think_fast>", "</ifm|think_faster>", "<ifm|tool_calls>"),
        dropped=("</ifm|think_fast>", "</ifm|think_faster>"),
    ),
    ("<|START_THINKING|>", "<|END_THINKING|>"): ReasoningFormat(
        opens="<|START_THINKING|>",
        closes="<|END_THINKING|>",
        repeats=True,
        dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    ("<|inner_prefix|>", "<|inner_suffix|>"): ReasoningFormat(
        opens="<|inner_prefix|>",
        closes="<|inner_suffix|>",
        ends=("<|tools_prefix|>",),
        repeats=True,
        dropped=("<|assistant_end|>",),
    ),
    ("[BEGIN FINAL RESPONSE]",): ReasoningFormat(
        opens="Here are my reasoning steps:",
        closes="[BEGIN FINAL RESPONSE]",
        dropped=("[END FINAL RESPONSE]",),
    ),
    (">>>${recipient}",): ReasoningFormat(dropped=(">>>all\n",), answer=("all\n", "")),
    ("<think>", "<response></response>"): ReasoningFormat(
        opens="<think>", closes="</think>", answer=("<response>", "</response>")
    ),
}
"""Formats by texts of a family's chat templates; a template must have all of them."""

_ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "<|open|>think<|sep|>": ("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
}
"""Markers that end reasoning, by mlx-lm's opening marker."""

_REPEATING: Final[Mapping[str, str]] = {"<|channel>thought": "<|channel>"}
"""Misspelled form that a model writes, by mlx-lm's opening marker; these are special tokens."""

Transitions = Mapping[str, Sequence[tuple[str, str]]]

_SOLAR: Final[Transitions] = {
    HEADER: (("<|think|>", REASONING), ("<|content|>", CONTENT), ("<|tool_calls|>", TOOL)),
    REASONING: (("<|end|>", HEADER),),
    CONTENT: (("<|end|>", HEADER),),
}
"""Messages of Solar Open; calls are a message of their own, from `<|tool_calls|>` to `<|calls|>`:

    <|think|>reasoning<|end|><|begin|>assistant<|content|>an answer<|end|>
"""

_INKLING_ENDS: Final = tuple(
    (marker, HEADER)
    for marker in ("<|end_message|>", "<|message_model|>", "<|content_model_end_sampling|>")
)
_INKLING: Final[Transitions] = {
    HEADER: (
        ("<|content_thinking|>", REASONING),
        ("<|content_text|>", CONTENT),
        ("<|content_invoke_tool_json|>", TOOL),
    ),
    REASONING: _INKLING_ENDS,
    CONTENT: _INKLING_ENDS,
}
"""Messages of Inkling; a message's kind is the marker behind its header.

    <|message_model|><|content_thinking|>reasoning<|end_message|>
    <|message_model|>look<|content_invoke_tool_json|>{"name": "look", "args": {}}<|end_message|>
"""
_CHANNELS: Final[Mapping[str, tuple[Transitions, tuple[str, str]]]] = {
    harmony.THOUGHT[0]: (harmony.TRANSITIONS, harmony.THOUGHT),
    "<|begin|>assistant<|think|>": (_SOLAR, ("<|think|>", "<|end|><|begin|>assistant<|content|>")),
    "<|content_thinking|>": (
        _INKLING,
        ("<|content_thinking|>", "<|end_message|><|message_model|><|content_text|>"),
    ),
}
"""Transitions, and markers of `channel_markers`, by a text of a family's chat templates."""


def reasoning_format(tokenizer: Tokenizer) -> ReasoningFormat | None:
    """Return the markers of a model's reasoning.

    None for a model without reasoning, or with messages in channels.
    """
    template = str(tokenizer.chat_template)
    if message_channels(tokenizer) is not None:
        return None
    for texts, form in FAMILIES.items():
        if all(text in template for text in texts):
            return form
    if tokenizer.has_thinking:
        opens, closes = str(tokenizer.think_start), str(tokenizer.think_end)
        stray = _REPEATING.get(opens, "")
        return ReasoningFormat(
            opens=opens,
            closes=closes,
            ends=_ENDS.get(opens, ()),
            repeats=bool(stray),
            dropped=(stray,) if stray else (),
        )
    if THINK.opens in template and THINK.closes in template:
        return THINK
    return None


def message_channels(tokenizer: Tokenizer) -> tuple[str, Transitions] | None:
    """Return the first state and the transitions of a model that writes message headers.

    None for other models.
    """
    if tokenizer.response_initial_state is not None:
        return tokenizer.response_initial_state, tokenizer.response_transitions
    found = _channels(tokenizer)
    return None if found is None else (HEADER, found[0])


def channel_markers(tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return the markers that open reasoning, and that lead to the answer.

    None for a model without message headers.
    """
    found = _channels(tokenizer)
    return None if found is None else found[1]


def reasoning_splitter(
    tokenizer: Tokenizer, functions: Sequence[Mapping[str, Any]] = (), *, thinking: bool = False
) -> Splitter:
    """Return the parser of a model's output that separates reasoning and content.

    `functions` are the request's tools; `thinking`: the prompt has opened reasoning.
    """
    channels = message_channels(tokenizer)
    if channels is not None and harmony.uses_harmony(tokenizer):
        return harmony.HarmonySplitter(functions)
    if channels is not None:
        return ChannelSplitter(*channels)
    form = reasoning_format(tokenizer)
    if form is None or not form.opens:
        return ReasoningSplitter(None)
    markers = (form.opens, form.closes)
    return ReasoningSplitter(markers, thinking=thinking, ends=form.ends, repeats=form.repeats)


def opens_reasoning(tokenizer: Tokenizer, tokens: Sequence[int]) -> bool:
    """Return whether a prompt ends in an opening marker and white space."""
    form = reasoning_format(tokenizer)
    if form is None or not form.opens:
        return False
    text = str(tokenizer.decode(words(tokens[-64:])))
    return text.rstrip().endswith((form.opens, *form.others))


def _channels(tokenizer: Tokenizer) -> tuple[Transitions, tuple[str, str]] | None:
    template = str(tokenizer.chat_template)
    return next((found for text, found in _CHANNELS.items() if text in template), None)
