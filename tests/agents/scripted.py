"""A model that makes the calls of a script, behind any chat template.

It makes a call until the prompt holds the call's proof, a text that only its result can contain;
then the next one, and reports at last. It finds its own output as the end of what it has read, so
that it needs to know nothing of the template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.models.pool.pool import Pool, build_pool
from omlx.text.calls.markup import write_calls
from omlx.text.reasoning import message_channels
from tests.server.spelling import Spelling, read

CONTEXT = 1 << 17
UNTHOUGHT = "</think>\n\n"
"""Ends reasoning that the template has begun."""
REPORT = "All done."
ANSWER = "<|channel|>final<|message|>"
"""Begins an answer of gpt-oss."""
PREAMBLE = (
    "<|channel|>analysis<|message|>The weather.<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
)
"""Reasoning and a text before a call of gpt-oss: one message, which its template does not take."""


@dataclass(frozen=True)
class Step:
    """A call and its proof."""

    name: str
    arguments: Mapping[str, str]
    proof: str


class Scripted(Spelling):
    """The vocabulary of a `Spelling` model; `steps` is set by `scripted_pool`."""

    steps: tuple[Step, ...] = ()

    def __init__(self, tokenizer: TokenizerWrapper) -> None:
        super().__init__(tokenizer)
        self._stop = min(tokenizer.eos_token_ids)
        texts = [self._call(number, step) for number, step in enumerate(self.steps)]
        self._calls = [
            (self._ids(text), step.proof) for text, step in zip(texts, self.steps, strict=True)
        ]
        channels = message_channels(tokenizer) is not None
        self._report = self._ids(ANSWER + REPORT if channels else REPORT)

    def _call(self, number: int, step: Step) -> str:
        """The text of a call as the template's family writes it."""
        function = {"name": step.name, "arguments": step.arguments}
        call = write_calls(self._tokenizer, [{"id": f"a1b2c3d4{number}", "function": function}])
        return PREAMBLE + call if message_channels(self._tokenizer) is not None else call

    def _follow(self, known: list[int], width: int) -> list[int]:
        """Of a window wider than drafts are, only the last token matters: it reads a prompt."""
        if width > MAX_DRAFT_LENGTH + 1:
            return [self._stop] * (width - 1) + [self._then(known)]
        return [self._then(known[:n]) for n in range(len(known) - width + 1, len(known) + 1)]

    def _then(self, known: list[int]) -> int:
        text = str(self._tokenizer.decode(known))
        output = self._output(text)
        unthought = self._ids(UNTHOUGHT) + output
        begun, begun_unthought = _overlap(known, output), _overlap(known, unthought)
        if begun_unthought > begun or (not begun and text.rstrip().endswith("<think>")):
            output, begun = unthought, begun_unthought
        return output[begun] if begun < len(output) else self._stop

    def _output(self, text: str) -> list[int]:
        """What follows a prompt, in tokens, without the end of reasoning."""
        pending = (call for call, proof in self._calls if proof not in text)
        return next(pending, self._report)


def _overlap(known: list[int], output: list[int]) -> int:
    """The length of the longest beginning of `output` at the end of `known`."""
    lengths = range(min(len(known), len(output)), 0, -1)
    return next((n for n in lengths if known[-n:] == output[:n]), 0)


def scripted_pool(*steps: Step) -> Callable[..., Pool]:
    """Return what builds a pool whose models follow the steps."""
    kind = type("Scripted", (Scripted,), {"steps": steps})
    return partial(build_pool, read=partial(read, kind=kind, context=CONTEXT))
