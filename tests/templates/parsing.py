"""An output's text as the server parses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason
from omlx.errors import Reason
from omlx.records import RequestStats
from omlx.text.events import (
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStart,
)
from omlx.text.output import OutputParser, OutputSpec

STATS: Final = RequestStats(1, 0, 1, 0.0, 0.0, 0.0, 0, {}, Reason("spec.off.requested"))


@dataclass(slots=True)
class Output:
    """What a client gets: a call is its id, its name and its arguments as JSON text."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, event: OutputEvent) -> None:
        match event:
            case TextDelta(text=text):
                self.text += text
            case ReasoningDelta(text=text):
                self.reasoning += text
            case ToolCallStart(id=call_id, name=name):
                self.calls.append((call_id, name, ""))
            case ToolCallArguments(text=text):
                call_id, name, arguments = self.calls[-1]
                self.calls[-1] = (call_id, name, arguments + text)


def parse(
    model: TokenizerWrapper,
    output: str | Sequence[int],
    tools: Sequence[Mapping[str, Any]] = (),
    **spec: Any,
) -> Output:
    """Parse an output, of tokens or of the text that they make."""
    if isinstance(output, str):
        output = model.encode(output, add_special_tokens=False)
    stop_ids = frozenset(model.eos_token_ids)
    parser = OutputParser(model, OutputSpec(stop_ids=stop_ids, tools=tuple(tools), **spec))
    result = Output()
    for event in [*parser.feed(output), *parser.finish(FinishReason.STOP, STATS)]:
        result.add(event)
    return result
