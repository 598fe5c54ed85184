from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.chat_templates.muse_spark import RESPONSE_FORMAT

from omlx.text.channels import ChannelSplitter
from omlx.text.events import ReasoningDelta

CALL = '<atem:function_calls>\n<atem:invoke name="look">\n</atem:invoke>\n</atem:function_calls>'
NEXT = "<|eom|><|start|>assistant "
WHOLE = f"to=self<|message|>Hm. <|eo{NEXT}to=look<|message|>{CALL}{NEXT}to=user<|message|>It <rains.<|eot|>"


def read(chunks: list[str]) -> tuple[str, str]:
    """(reasoning, content)"""
    headers = ChannelSplitter(RESPONSE_FORMAT["initial_state"], RESPONSE_FORMAT["transitions"])
    pieces = [piece for chunk in chunks for piece in headers.feed(chunk)] + headers.finish()
    thought = [isinstance(piece, ReasoningDelta) for piece in pieces]
    told = [piece.text for piece in pieces]
    return (
        "".join(text for text, is_thought in zip(told, thought, strict=True) if is_thought),
        "".join(text for text, is_thought in zip(told, thought, strict=True) if not is_thought),
    )


@given(cuts=st.lists(st.integers(0, len(WHOLE)), max_size=8))
def test_any_chunking_gives_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(WHOLE)]
    chunks = [WHOLE[a:b] for a, b in pairwise(edges)]
    assert read(chunks) == ("Hm. <|eo", f"{CALL}It <rains.")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("No header at all.", ("", "No header at all.")),
        ("to=self<|message|>cut o", ("cut o", "")),
        ("to=self<|message|>a<|eo", ("a<|eo", "")),
        (f"to=self<|message|>a{NEXT}to=us", ("a", "")),
        ("to=commentary<|message|>I look.", ("", "I look.")),
        ("", ("", "")),
    ],
)
def test_what_is_cut_off(text: str, found: tuple[str, str]) -> None:
    assert read([text]) == found
    assert read(list(text)) == found
