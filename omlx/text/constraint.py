"""What constrains the tokens of one choice, as plain data: a mask can be made of it again."""

from __future__ import annotations

from dataclasses import dataclass

from omlx.engine.types import TokenMask
from omlx.text.grammar import (
    CompiledGrammar,
    GrammarCompiler,
    Preamble,
    StructuredOutput,
)
from omlx.text.grammar_mask import GrammarMask
from omlx.text.thinking_budget import ThinkingBudgets
from omlx.text.tools import ToolUse


@dataclass(frozen=True, slots=True)
class Constraint:
    """A structured output, tools with their arguments, or both, and a thinking budget; `Preamble`
    has the other fields. `opened`: the prompt, also one that is no conversation, ends in reasoning.
    """

    output: StructuredOutput | None = None
    tools: ToolUse | None = None
    thinking: bool = False
    may_think: bool = False
    may_call: bool = False
    answer_prefix: str = ""
    thinking_budget: int | None = None
    opened: bool = False

    def compile(
        self, grammars: GrammarCompiler
    ) -> tuple[CompiledGrammar | None, CompiledGrammar | None]:
        """Return the grammars of the structured output and of tool calls. Raises BadRequest."""
        output = None if self.output is None else grammars.compile(self.output)
        calls = None if self.tools is None else grammars.compile_tool_calls(self.tools)
        return output, calls

    def mask(
        self,
        grammars: GrammarCompiler,
        budgets: ThinkingBudgets,
        output: CompiledGrammar | None,
        calls: CompiledGrammar | None,
    ) -> TokenMask | None:
        """Return the mask of the output's form and of its thinking budget; None where nothing is
        constrained. Takes what `compile` returns.
        """
        form = self._form_mask(grammars, output, calls)
        if self.thinking_budget is None:
            return form
        return budgets.mask(self.thinking_budget, form, self.tools, thinking=self.opened)

    def _form_mask(
        self,
        grammars: GrammarCompiler,
        output: CompiledGrammar | None,
        calls: CompiledGrammar | None,
    ) -> GrammarMask | None:
        """Return the mask of a forced call or of a structured output; of calls alone where the
        answer is free.
        """
        forced = self.tools is not None and self.tools.forced
        answer = calls if forced else output
        if answer is None and (forced or calls is None):
            return None
        preamble = Preamble(
            thinking=self.thinking,
            may_think=self.may_think,
            may_call=self.may_call,
            calls=None if forced else calls,
            answer_prefix=self.answer_prefix,
        )
        return grammars.mask(answer, preamble)
