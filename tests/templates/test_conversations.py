"""Conversations of every kind through real chat templates: none is refused, no text is lost, and a
further turn keeps the prefix.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest

from omlx.text.template.render import render
from tests import lanes
from tests.lanes import few
from tests.templates.fetched import TEMPLATES, tokenizer

CONVERSATIONS: Final = 30 if lanes.slow else 12
FAULTY: Final = {
    # After an assistant message without calls, results are not rendered if one came first.
    "Cohere2MoE": {"orphans"},
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": {"orphans"},
    # Calls are rendered with their results only.
    "NVIDIA-Nemotron-Nano-v2": {"unanswered"},
    # The system message is rendered with a user message at the end only.
    "mistralai-Mistral-Nemo-Instruct-2407": {"systems"},
}
"""What some templates lose in a way that no small conversation shows."""
MOVING: Final = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "instructions come after the last user message",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "the last turn is rendered otherwise",
    "deepseek-ai-DeepSeek-V4": "earlier answers are rendered otherwise after a result",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "earlier answers are rendered otherwise after a result",
    "fireworks-ai-llama-3-firefunction-v2": "a system message anywhere replaces the default one",
    "mistralai-Mistral-Nemo-Instruct-2407": "the system message comes before the last user message",
    "muse-glimmer": "a system message anywhere replaces the default one at the beginning",
    "unsloth-Apriel-1.5": "a system message anywhere replaces the default one at the beginning",
}
"""Templates in which a further turn changes what was rendered before it, and how."""
TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look it up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
    },
}


class Writer:
    """Writes conversations with a word of its own in every text."""

    def __init__(self, seed: int, without: set[str]) -> None:
        self._random = random.Random(seed)
        self._without = without
        self.words: list[str] = []

    def conversation(self) -> list[dict[str, Any]]:
        messages = []
        for _ in range(self._random.randint(1, 9)):
            kinds = [self._user, self._user, self._assistant, self._calls]
            if "systems" not in self._without:
                kinds.append(self._system)
            if "orphans" not in self._without:
                kinds.append(self._orphan)
            messages += self._random.choice(kinds)()
        return messages

    def _word(self) -> str:
        self.words.append(f"zyx{len(self.words)}q")
        return self.words[-1]

    def _system(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self._word()}]

    def _user(self) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self._word()}]

    def _assistant(self) -> list[dict[str, Any]]:
        text = self._word() if self._random.random() < 0.9 else ""
        return [{"role": "assistant", "content": text}]

    def _calls(self) -> list[dict[str, Any]]:
        calls = [self._call() for _ in range(self._random.choice([1, 1, 2, 3]))]
        # A text beside calls is left out by some templates, with a warning.
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        answered = [each for each in calls if self._random.random() < 0.9]
        if "unanswered" in self._without:
            answered = calls
        return [message, *(self._result(each["id"]) for each in answered)]

    def _call(self) -> dict[str, Any]:
        letters = "".join(self._random.choices("abcXYZ0189", k=9))
        id = self._random.choice(["call_", "toolu_01", ""]) + letters
        kind = self._random.choice(["object"] * 5 + ["empty", "broken", "text"])
        arguments: object = {}
        if kind == "object":
            arguments = {"key": self._word(), "n": 5, "deep": {"list": [1, None]}}
        elif kind == "broken":
            arguments = '{"key": "' + self._word()
        elif kind == "text":
            arguments = self._word()
        function = {"name": "look", "arguments": arguments}
        return {"id": id, "type": "function", "function": function}

    def _result(self, id: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": id, "name": "look", "content": self._word()}

    def _orphan(self) -> list[dict[str, Any]]:
        return [self._result("call_elsewhere")]


def said(messages: list[dict[str, Any]]) -> list[str]:
    """The assistant's own words."""
    return [message["content"] for message in messages if message["role"] == "assistant"]


@pytest.mark.parametrize("name", few(TEMPLATES, every=3))
def test_no_conversation_is_refused_and_no_text_is_lost(name: str) -> None:
    loaded = tokenizer(name)
    for seed in range(CONVERSATIONS):
        writer = Writer(seed, FAULTY.get(name, set()))
        messages = writer.conversation()
        prompt = render(loaded, messages)
        text = loaded.decode(prompt.tokens)
        left_out = []
        if "conversation.text_left_out" in [change.code for change in prompt.changes]:
            left_out = said(messages)
        lost = [word for word in writer.words if word not in text and word not in left_out]
        assert lost == [], (seed, json.dumps(messages))


@pytest.mark.parametrize("name", few((name for name in TEMPLATES if name not in MOVING), every=3))
def test_a_further_turn_keeps_the_prefix(name: str) -> None:
    loaded = tokenizer(name)
    for seed in range(CONVERSATIONS // 3):
        writer = Writer(seed, FAULTY.get(name, set()))
        messages = [{"role": "user", "content": "hello"}]
        before: tuple[int, ...] = ()
        for turn in range(4):
            prompt = render(loaded, messages)
            assert prompt.tokens[: len(before)] == before, (seed, turn, json.dumps(messages))
            before = prompt.tokens[: prompt.stable]
            messages = [*messages, {"role": "assistant", "content": f"answer {turn}"}]
            messages += [*writer.conversation(), {"role": "user", "content": "more"}]
