"""Every shape of function and of turn through real chat templates: none is refused, and what a
template loses is named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from tests.lanes import few
from tests.templates.fetched import TEMPLATES
from tests.templates.shapes import OK, table, tool_cells, turn_cells

QUICK: Final = (
    "ByteDance-Seed-OSS",
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "GigaChat3-10B-A1.8B",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen3.5-4B",
    "deepseek-ai-DeepSeek-V3.1",
    "llama-cpp-deepseek-r1",
    "meetkai-functionary-medium-v3.2",
    "openai-gpt-oss-120b",
)
"""One of each kind; `make test-full` runs all."""
ONE_LEVEL: Final = ("ByteDance-Seed-OSS", "CohereForAI-c4ai-command-r-plus-tool_use")
"""Their functions have a line for each parameter: what is within an object is not shown."""
NESTED: Final = {
    f"{shape}{suffix}": "lost: " + ("zqxb, zqxc" if shape == "nested" else "zqxb")
    for shape in ("$ref", "nested", "objects")
    for suffix in ("", ", not described")
}
NO_TEXTS: Final = (
    *("MiniMax-M1", "Mistral-Small-3.2", "Mistral-Nemo", "NousResearch-Hermes"),
    *("meta-llama-Llama-3", "upstage-Solar-Open"),
)
"""Beginnings and middles of names: texts beside calls are not rendered, nor is reasoning, which
could hold them."""
GPT_OSS: Final = "openai-gpt-oss-120b"
"""Renders a text beside calls as reasoning, and no reasoning before an answer."""


def differing(row: Mapping[str, str]) -> dict[str, str]:
    return {shape: cell for shape, cell in row.items() if cell != OK}


@pytest.mark.parametrize("name", few(TEMPLATES, *QUICK))
def test_every_function_is_listed(name: str) -> None:
    row = tool_cells(name)
    print(table({name: row}))  # noqa: T201 — the table, for -s and for failures
    assert differing(row) == (NESTED if name in ONE_LEVEL else {})


@pytest.mark.parametrize("name", few(TEMPLATES, *QUICK))
def test_every_turn_is_rendered(name: str) -> None:
    row = turn_cells(name)
    print(table({name: row}))  # noqa: T201 — the table, for -s and for failures
    texts = {shape for shape in row if "text" in shape and "calls" in shape}
    expected = {}
    if any(part in name for part in NO_TEXTS):
        expected = dict.fromkeys(texts, "conversation.text_left_out")
    elif name == GPT_OSS:
        answered = {shape for shape in texts if "answer" in shape}
        expected = dict.fromkeys(answered, "conversation.text_in_reasoning")
    assert differing(row) == expected
