"""Lists of events, and each dialect's golden transcript of them in golden/.

`python -m tests.server.transcripts` writes the transcripts again; review the diff.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omlx.engine.types import FinishReason, TokenLogprob
from omlx.errors import Reason
from omlx.records import DrafterStats, Gate, RequestStats
from omlx.server.dialects.anthropic.encoder import MessageEncoder
from omlx.server.dialects.ollama import encoder as ollama
from omlx.server.dialects.openai.choices_encoder import ChatEncoder, CompletionEncoder, Head
from omlx.server.dialects.openai.responses_encoder import ResponseEncoder
from omlx.server.request.dialect import Encoder
from omlx.server.request.stream import ChoiceEvent
from omlx.text.events import (
    Finish,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

GOLDEN = Path(__file__).parent / "golden"
STATS = RequestStats(100, 60, 40, 1.0, 50.0, 200.0, 7, {}, Reason("spec.off.requested"))
CALLS: list[OutputEvent] = [
    ReasoningDelta("The user wants"),
    ReasoningDelta(" the weather."),
    TextDelta("I will"),
    TextDelta(" look. é"),
    ToolCallStart(0, "call_0a", "get_weather"),
    ToolCallArguments(0, '{"city": '),
    ToolCallArguments(0, '"Zürich"}'),
    ToolCallEnd(0),
    ToolCallStart(1, "call_1b", "look"),
    ToolCallArguments(1, "{}"),
    ToolCallEnd(1),
    Finish(FinishReason.STOP, STATS, 6, tool_calls=2),
]
PLAIN: list[OutputEvent] = [
    TextDelta("One, "),
    TextDelta("two"),
    Finish(FinishReason.STOP, STATS, stop=", three"),
]
DRAFTER = DrafterStats(10, 6, 3, [3, 2, 1], {"full": 1, "first_reject": 2}, {"trim": 2}, 4.5, 20.25)
DRAFTED = RequestStats(
    prompt_n=12,
    cached_n=4,
    predicted_n=8,
    queue_ms=1.0,
    prompt_ms=50.0,
    predicted_ms=200.0,
    seed=7,
    drafters={"org/small": DRAFTER},
    speculation=Reason("spec.off.no_draft"),
    strategy="ngram",
    strategy_notes=(Reason("strategy.read_as", {"name": "draftless", "meant": "ngram"}),),
    gates={"ngram": Gate("on")},
    speedup=1.2346,
)
ENTRY = TokenLogprob(65, -0.5, ((65, -0.5), (255, float("-inf"))))
TWO = [
    ChoiceEvent(choice, event)
    for choice in range(2)
    for event in (
        ReasoningDelta("why"),
        TextDelta("A", (ENTRY,)),
        TextDelta(f"{choice}"),
        Finish(FinishReason.LENGTH, DRAFTED, 3, (ENTRY,)),
    )
]
EVENTS = {
    "calls": [ChoiceEvent(0, event) for event in CALLS],
    "plain": [ChoiceEvent(0, event) for event in PLAIN],
    "two": TWO,
}
HEAD = Head("chatcmpl-1", "org/name", 1700000000)
TWO_HEAD = Head("chatcmpl-1", "org/name", 1700000000, lambda token: bytes([token]))
OLLAMA_HEAD = ollama.Head("org/name", "2023-11-14T22:13:20Z", 7.0)

ENCODERS: dict[str, Callable[[], Encoder]] = {
    "chat": lambda: ChatEncoder(HEAD, 1, include_usage=True),
    "chat.two": lambda: ChatEncoder(TWO_HEAD, 2, include_usage=True),
    "completions": lambda: CompletionEncoder(HEAD, 1, ["Echo. "]),
    "responses": lambda: ResponseEncoder(Head("resp_1", "org/name", 1700000000), {"tools": []}),
    "messages": lambda: MessageEncoder("msg_1", "org/name", 100, max_tokens=1000),
    "ollama.chat": lambda: ollama.ChatEncoder(OLLAMA_HEAD),
    "ollama.generate": lambda: ollama.CompletionEncoder(OLLAMA_HEAD),
}


CASES = [
    *((name, case) for name in ENCODERS for case in ("calls", "plain") if name != "chat.two"),
    ("chat.two", "two"),
]


def transcript(dialect: str, case: str) -> dict[str, Any]:
    streamed, events = ENCODERS[dialect](), EVENTS[case]
    stream = streamed.start() + streamed.feed(events)
    return {"body": ENCODERS[dialect]().body(events), "stream": stream}


def shown(dialect: str, case: str) -> str:
    """A stream as text, one payload a line."""
    made = transcript(dialect, case)
    lines = ",\n".join(
        "  " + json.dumps(each, ensure_ascii=False, allow_nan=False) for each in made["stream"]
    )
    body = json.dumps(made["body"], ensure_ascii=False, allow_nan=False, indent=1)
    return f'{{"body": {body},\n"stream": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    for name, case in CASES:
        (GOLDEN / f"{name}.{case}.json").write_text(shown(name, case), encoding="utf-8")
