"""An output's text as the server parses it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.types import FinishReason
from omlx.errors import Reason
from omlx.records import RequestStats
from omlx.text.events import (
    Finish,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
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
    complete: list[bool] = field(default_factory=list)

    @property
    def named(self) -> list[tuple[str, Any]]:
        """The calls as name and arguments."""
        return [(name, json.loads(arguments)) for _, name, arguments in self.calls]

    def add(self, event: OutputEvent) -> None:
        match event:
            case TextDelta(text=text):
                self.text += text
            case ReasoningDelta(text=text):
                self.reasoning += text
            case ToolCallStart(id=call_id, name=name, index=index):
                assert index == len(self.calls)
                self.calls.append((call_id, name, ""))
            case ToolCallArguments(text=text):
                call_id, name, arguments = self.calls[-1]
                self.calls[-1] = (call_id, name, arguments + text)
            case ToolCallEnd(complete=complete):
                self.complete.append(complete)
            case Finish(tool_calls=count):
                assert count == len(self.calls)


def random_cuts(length: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield starts and ends of pieces, at random; one piece for seed 0."""
    choose = random.Random(seed)
    cuts = {0, length, *(choose.randrange(length) for _ in range(6 * seed if length else 0))}
    return pairwise(sorted(cuts))


def parse(
    model: TokenizerWrapper,
    output: str | Sequence[int],
    tools: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    reason: FinishReason = FinishReason.STOP,
    **spec: Any,
) -> Output:
    """Parse an output, of tokens or of the text that they make, cut at random by `seed`."""
    if isinstance(output, str):
        output = model.encode(output, add_special_tokens=False)
    stop_ids = frozenset(model.eos_token_ids)
    parser = OutputParser(model, OutputSpec(stop_ids=stop_ids, tools=tuple(tools), **spec))
    result = Output()
    pieces = [output[start:end] for start, end in random_cuts(len(output), seed)]
    events = [event for piece in pieces for event in parser.feed(piece)]
    for event in [*events, *parser.finish(reason, STATS)]:
        result.add(event)
    return result
