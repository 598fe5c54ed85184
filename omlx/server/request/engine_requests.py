"""From a `GenerationRequest` and a loaded model to the engine's requests.

Pure; runs templates and tokenizers.

GenerationRequest ─► tokenize ─► TokenizedRequest ─► engine_requests ─► one Request for each choice
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import AUTO
from omlx.engine.types import Request, Sampling, Speculation
from omlx.errors import BadRequest, Param, Reason
from omlx.models.pool.served import ServedModel
from omlx.server.request.content import without_attribution
from omlx.server.request.generation_request import GenerationRequest, first, sampling_fields
from omlx.text.constraint import Constraint
from omlx.text.grammar import CompiledGrammar
from omlx.text.output import OutputSpec, stop_matcher
from omlx.text.reasoning import opens_reasoning
from omlx.text.template.render import ImagePlacer, Prompt, render
from omlx.text.tokens import MAX_TOKENS, encode, infill_prompt, infill_token_ids

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

EFFORT: Final = "reasoning_effort"
"""The variable by which chat templates take a level of reasoning."""
NOWHERE: Final = 1 << 62
"""A position that no answer reaches."""
DETOKENIZER_CONTEXT: Final = 4
"""Prompt tokens that a detokenizer reads first where the output continues a text."""


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """A request's texts as ids, and its grammars compiled.

    `grammar` constrains the answer to its structured output. `calls` constrains tool calls within
    the answer, or the answer itself where a call is forced.
    """

    prompts: list[Prompt]
    prediction: tuple[int, ...]
    grammar: CompiledGrammar | None
    calls: CompiledGrammar | None
    thinking: tuple[Reason, ...] = ()

    @property
    def warnings(self) -> tuple[Reason, ...]:
        """Warnings: rewritten messages, unenforced parts of schemas, fields about reasoning without
        effect.
        """
        changes = [prompt.changes for prompt in self.prompts]
        grammars = [grammar.warnings for grammar in (self.grammar, self.calls) if grammar]
        return tuple(chain.from_iterable([*changes, *grammars, self.thinking]))


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """Choice: the engine's request, the parser of the output, and constraints."""

    request: Request
    spec: OutputSpec
    constraint: Constraint


def tokenize(served: ServedModel, request: GenerationRequest) -> TokenizedRequest:
    """Raises BadRequest for invalid ids, templates, schemas, and for a prediction longer than
    the context."""
    grammar = calls = None
    if request.structured_output is not None:
        grammar = served.grammars.compile(request.structured_output)
    if request.tools is not None:
        calls = served.grammars.compile_tool_calls(request.tools)
    if request.prompts:
        prompts = [_raw_prompt(served, request, prompt) for prompt in request.prompts]
    else:
        prompts = [_conversation(served, request)]
    thinking = tuple(_without_effect(served, request))
    return TokenizedRequest(prompts, _prediction(served, request), grammar, calls, thinking)


def _conversation(served: ServedModel, request: GenerationRequest) -> Prompt:
    render = partial(render_conversation, served.tokenizer, placer=served.vision.family)
    if request.truncates:
        return truncate(request, served.context_length, render)
    return render(request, context_length=served.context_length)


def render_conversation(
    tokenizer: TokenizerWrapper,
    request: GenerationRequest,
    context_length: int = MAX_TOKENS,
    placer: ImagePlacer | None = None,
) -> Prompt:
    return render(
        tokenizer,
        without_attribution(request.messages),
        request.template_variables,
        tools=request.tools,
        continue_last=request.continue_last,
        context_length=context_length,
        placer=placer,
    )


def check_ids(tokens: Sequence[int], vocab_size: int, param: str) -> None:
    """Raise BadRequest for an id outside the vocabulary."""
    wrong = next((token for token in tokens if token >= vocab_size), None)
    if wrong is not None:
        raise BadRequest("request.token", param=param, field=param, token=wrong, size=vocab_size)


def check_model(request: GenerationRequest, served: ServedModel) -> None:
    """Check what depends on the model; the engine checks the length of the prompt.

    Raises BadRequest for a drafter requested by name that the model does not have (`auto` takes
    any), for biases of ids outside the vocabulary, and for an encoder.
    """
    if not served.generates:
        raise BadRequest("model.encoder", param="model")
    named = request.speculation
    clauses = () if named is None else named.with_draft_as(served.draft_kind).clauses
    names = {clause.name for clause in clauses}
    missing = {**served.missing, "draft": served.no_draft_reason}
    for name in sorted(names - {"auto", "off"}):
        reason = served.off_reason or missing.get(name)
        if reason is not None:
            raise BadRequest(reason.code, param="speculation", **reason.params)
    for token in request.logit_bias:
        if not 0 <= token < served.vocab_size:
            raise BadRequest(
                "request.logit_bias", param="logit_bias", token=token, vocab_size=served.vocab_size
            )


def engine_requests(
    served: ServedModel,
    request: GenerationRequest,
    texts: TokenizedRequest,
    id: str,
    seed: int,
    run_id: str | None = None,
    priority: int = 0,
) -> Iterator[ChoiceRequest]:
    """Yield each choice.

    Choice i of prompt p has number p · n + i, which ends its id. The choices of each prompt are
    sampled as if it were the only one. `run_id` is the id for the engine, if it is another one.
    """
    run_id = run_id or id
    bias = tuple(sorted(request.logit_bias.items()))
    sampling = replace(sampling_of(served, request.sampling), seed=seed, logit_bias=bias)
    if sampling.xtc_probability:
        spared = served.stop_ids | set(served.tokenizer.encode("\n", add_special_tokens=False))
        sampling = replace(sampling, xtc_spared=tuple(sorted(spared)))
    speculation = _speculation(served, request, texts.prediction)
    max_tokens = first(request.max_tokens, served.speculation.settings.max_tokens)
    number = 0
    for prompt in texts.prompts:
        ending = _with_end_position(sampling, served, request, prompt)
        for choice in range(request.n):
            spec = _output_spec(served, request, prompt, f"{id}-{number}")
            constraint = _constraint(served, request, prompt)
            yield ChoiceRequest(
                Request(
                    id=f"{run_id}-{number}",
                    group=id,
                    tokens=prompt.tokens,
                    sampling=replace(ending, choice=choice),
                    max_tokens=max_tokens,
                    stop_ids=spec.stop_ids,
                    stop=stop_matcher(served.tokenizer, spec),
                    top_logprobs=request.top_logprobs,
                    prompt_logprobs=request.prompt_logprobs,
                    speculation=speculation,
                    stable=prompt.stable,
                    mask=constraint.mask(
                        served.grammars, served.thinking, texts.grammar, texts.calls
                    ),
                    images=prompt.images,
                    spans=prompt.spans,
                    priority=priority,
                ),
                spec,
                constraint,
            )
            number += 1


def _with_end_position(
    sampling: Sampling, served: ServedModel, request: GenerationRequest, prompt: Prompt
) -> Sampling:
    """Sampling without end tokens in the first `min_tokens` of the answer, or in all of it."""
    if not request.min_tokens and not request.ignore_eos:
        return sampling
    position = len(prompt.tokens) + request.min_tokens
    if request.ignore_eos:
        position = NOWHERE
    ids = tuple(sorted(_stop_ids(served, request)))
    return replace(sampling, end_ids=ids, end_position=position)


def sampling_of(served: ServedModel, requested: Mapping[str, float]) -> Sampling:
    """Merge sampling parameters: the request's over the settings' over those of the model's own
    files.

    `top_p` 0 means the most likely token only, which the engine expresses as `top_k` 1.
    """
    configured = sampling_fields(served.speculation.settings)
    values: dict[str, Any] = {**served.sampling, **configured, **requested}
    if values.get("top_p") == 0:
        values |= {"top_p": 1.0, "top_k": 1}
    return Sampling(**values)


def _raw_prompt(
    served: ServedModel, request: GenerationRequest, prompt: str | tuple[int, ...]
) -> Prompt:
    """A prompt that is no conversation."""
    if not isinstance(prompt, str):
        check_ids(prompt, served.vocab_size, "prompt")
        return Prompt(prompt)
    if request.suffix:
        return Prompt(
            infill_prompt(served.tokenizer, prompt, request.suffix, served.context_length)
        )
    if not request.cuts_text:
        return Prompt(tuple(encode(served.tokenizer, prompt, served.context_length)))
    tokens = encode(served.tokenizer, prompt)
    most = _most(request, len(tokens), served.context_length)
    if len(tokens) <= most:
        return Prompt(tuple(tokens))
    begin = tokens[: int(tokens[0] == served.tokenizer.bos_token_id)]
    kept = (*begin, *tokens[len(tokens) - most + len(begin) :])
    return Prompt(kept, changes=(_cut(len(tokens), len(kept), served.context_length),))


def _prediction(served: ServedModel, request: GenerationRequest) -> tuple[int, ...]:
    if not request.prediction:
        return ()
    tokens = encode(
        served.tokenizer,
        request.prediction,
        served.context_length,
        special=False,
        param="prediction",
    )
    if len(tokens) > served.context_length:
        raise BadRequest(
            "request.prediction_too_long",
            param="prediction",
            tokens=len(tokens),
            limit=served.context_length,
        )
    return tuple(tokens)


def _speculation(
    served: ServedModel, request: GenerationRequest, prediction: tuple[int, ...]
) -> Speculation:
    strategy = request.speculation
    if strategy is None:
        strategy = served.speculation.strategy
        if request.draft_model is not None:  # naming a draft requests speculation
            strategy = AUTO
    strategy = strategy.with_draft_as(served.draft_kind)
    if prediction and not strategy.off and strategy.clause("ngram") is None:
        unused = Reason("strategy.prediction_unused", {"strategy": str(strategy)})
        strategy = replace(strategy, notes=(*strategy.notes, unused))
    draft_length = DraftLength.merge(request.draft_length, served.speculation.draft_length)
    return Speculation(strategy, draft_length, prediction)


def _without_effect(served: ServedModel, request: GenerationRequest) -> Iterator[Reason]:
    """Fields about reasoning that this model has no use for."""
    budget = request.thinking_budget
    if budget is not None and served.thinking.markers is None:
        yield Reason("thinking.no_markers", {"budget": budget})
    effort = request.template_variables.get(EFFORT)
    if effort is not None and EFFORT not in str(served.tokenizer.chat_template):
        yield Reason("thinking.no_levels", {"effort": str(effort)})


def _output_spec(
    served: ServedModel, request: GenerationRequest, prompt: Prompt, id: str
) -> OutputSpec:
    continues = request.continue_last or bool(request.prompts)
    return OutputSpec(
        stop_ids=_stop_ids(served, request),
        stops=request.stop_strings,
        thinking=prompt.thinking,
        context=prompt.tokens[-DETOKENIZER_CONTEXT:] if continues else (),
        raw=bool(request.prompts),
        tools=() if request.tools is None else request.tools.functions,
        strict=frozenset() if request.tools is None else request.tools.strict,
        single=request.tools is not None and request.tools.single,
        mark_drafted=request.mark_drafted,
        salt=id,
    )


def _stop_ids(served: ServedModel, request: GenerationRequest) -> frozenset[int]:
    if request.suffix:
        return served.stop_ids | infill_token_ids(served.tokenizer)
    return served.stop_ids


def _constraint(served: ServedModel, request: GenerationRequest, prompt: Prompt) -> Constraint:
    """A structured output may begin with reasoning unless the request switches it off."""
    forced = request.forced_call
    new_message = not request.prompts and not request.continue_last
    thinking_off = request.template_variables.get("enable_thinking") is False
    answer_prefix = ""
    if request.continue_last and not forced:
        answer_prefix = str(request.messages[-1]["content"] or "")
    constrained = request.structured_output is not None or forced
    opened = prompt.thinking
    if request.prompts and request.thinking_budget is not None:
        opened = opens_reasoning(served.tokenizer, prompt.tokens)
    return Constraint(
        output=request.structured_output,
        tools=request.tools,
        thinking=prompt.thinking,
        may_think=new_message and not (constrained and thinking_off),
        may_call=new_message and request.tools is not None and not forced,
        answer_prefix=answer_prefix,
        thinking_budget=request.thinking_budget,
        opened=opened,
    )


def truncate(
    request: GenerationRequest,
    context_length: int,
    render: Callable[[GenerationRequest], Prompt],
) -> Prompt:
    """Return the prompt of a conversation without its oldest turns, as far as needed.

    Whole turns are left out, never the leading system messages. Their tokens are rounded up to
    quarters of the context: for some turns the same ones are left out, and the prompts share a
    prefix. The prompt is too long only if the last turn is. Raises what `render` does.
    """
    whole = render(request)
    most = _most(request, len(whole.tokens), context_length)
    if len(whole.tokens) <= most:
        return whole
    messages = request.messages
    first = next((i for i, one in enumerate(messages) if one["role"] != "system"), 0)
    turns = [i for i in range(first + 1, len(messages)) if messages[i]["role"] == "user"]
    prompts: dict[int, Prompt] = {}

    def fits(start: int) -> bool:
        kept = (*messages[:first], *messages[start:])
        prompts[start] = render(replace(request, messages=kept))
        return len(prompts[start].tokens) <= most

    at = bisect_left(turns, True, key=fits)
    start, prompt = first, whole
    changes: list[Reason] = []
    if turns:
        start = turns[min(at, len(turns) - 1)]
        prompt = prompts[start]
        left_out: dict[str, Param] = {"messages": start - first, "tokens": len(whole.tokens)}
        changes = [Reason("conversation.truncated", left_out | {"limit": context_length})]
    turn = messages[start]
    text = turn.get("content") if request.cuts_text and turn["role"] == "user" else None
    if isinstance(text, str) and len(prompt.tokens) > most:
        while text and len(prompt.tokens) > most:
            text = text[len(text) - len(text) * most * 9 // (len(prompt.tokens) * 10) :]
            kept = (*messages[:first], {**turn, "content": text}, *messages[start + 1 :])
            prompt = render(replace(request, messages=kept))
        changes.append(_cut(len(whole.tokens), len(prompt.tokens), context_length))
    return replace(prompt, changes=(*changes, *prompt.changes))


def _most(request: GenerationRequest, tokens: int, context_length: int) -> int:
    """Return the tokens of a prompt to keep: all, or fewer by quarters of the context.

    The room for the answer is `max_tokens`, a quarter at most.
    """
    quarter = max(1, context_length // 4)
    reserve = min(quarter, quarter if request.max_tokens is None else request.max_tokens)
    excess = tokens + max(1, reserve) - context_length
    return tokens - max(0, ceil(excess / quarter)) * quarter


def _cut(tokens: int, kept: int, context_length: int) -> Reason:
    return Reason("text.truncated", {"tokens": tokens, "kept": kept, "limit": context_length})
