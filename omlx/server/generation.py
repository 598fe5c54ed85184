"""From a request, neutral between the APIs, to a running stream:

GenerationRequest ─► lease a model ─► render ─► n engine requests ─► GenerationStream
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from omlx.draft_length import DraftLength
from omlx.engine.strategy import AUTO, Strategy
from omlx.engine.thread import EngineThread
from omlx.engine.types import Reason, Request, Sampling, Speculation, StopMatcher, TokenMask
from omlx.errors import BadRequest
from omlx.models.package.tokenizer import tokenizer_length
from omlx.models.pool.pool import Pool, ServedModel
from omlx.server.activity import Activity
from omlx.server.router import Router
from omlx.server.stream import GenerationStream
from omlx.text.grammar import CompiledGrammar, Preamble, StructuredOutput
from omlx.text.infill import infill_prompt, infill_token_ids
from omlx.text.output import OutputSpec, OutputStopMatcher
from omlx.text.stop_strings import StopStringMatcher
from omlx.text.template import Message, Prompt, render
from omlx.text.tools import ToolUse

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

T = TypeVar("T")

# Sampling parameters that a request, the settings and a model's generation_config.json may name.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
# Prompt tokens that a detokenizer reads first when the output continues a message.
CONTEXT_TOKENS = 4
SEED_BITS = 53
"""A drawn seed survives a client that keeps numbers as doubles, as JavaScript does."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What any dialect asks for. None, or a name missing from `sampling`, leaves it to the defaults.

    Where there are `prompts`, texts or ids, they are gone on with as they stand, and there are no messages; `suffix` is
    what comes behind the gap that is to be filled.
    """

    messages: Sequence[Message] = ()
    model: str | None = None
    draft_model: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    tools: ToolUse | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    suffix: str = ""
    continue_last: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculation: Strategy | None = None
    draft_length: DraftLength = field(default_factory=DraftLength)
    prediction: str = ""
    form: StructuredOutput | None = None


@dataclass(frozen=True, slots=True)
class _Texts:
    """What the texts of a request have become. The `grammar` is that of its answers, if they must have a form; `calls`
    is what binds the calls in them, or the answers themselves where a call is forced."""

    prompts: list[Prompt]
    prediction: tuple[int, ...]
    grammar: CompiledGrammar | None
    calls: CompiledGrammar | None


class GenerationService:
    """Opens streams, whose events `activity` observes.

    What a request leaves open is decided by the settings, then by the model's own files. `newest` holds the ids of the
    last prompt of each model, in memory only.
    """

    def __init__(self, engine: EngineThread, pool: Pool, activity: Activity) -> None:
        self._engine = engine
        self._pool = pool
        self._activity = activity
        self._router = Router()
        # One thread: templates and tokenizers of long prompts stay off the event loop, and see one caller at a time.
        self._text = ThreadPoolExecutor(1, "omlx-text")
        self.newest: dict[str, tuple[int, ...]] = {}

    async def open(self, request: GenerationRequest, prefix: str) -> GenerationStream:
        """Start every choice. Raises OmlxError; then nothing runs. The caller must close the stream.

        Waits while the model loads; its id begins with `prefix`.
        """
        if self._engine.failure is not None:
            raise self._engine.failure
        lease = await self._pool.lease(request.model, request.draft_model, request.speculation)
        stream = None
        try:
            request = _with_defaults(
                request, lease.served.speculation.settings.chat_template_kwargs or {}
            )
            _check(request, lease.served)
            texts = await self._off_loop(partial(_tokenize, lease.served, request))
            seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
            name = f"{prefix}{uuid.uuid4().hex}"
            stream = GenerationStream(self._engine, self._router, lease, name, seed, self._activity)
            self._submit(stream, request, texts)
        except BaseException:
            if stream is None:
                lease.release()
            else:
                stream.close()
            raise
        return stream

    async def prompt_ids(self, request: GenerationRequest) -> list[int]:
        """The tokens of a conversation's prompt, without loading a model. Raises OmlxError."""
        tokenizer = await self._pool.tokenizer(request.model)
        request = _with_defaults(
            request, await asyncio.to_thread(self._pool.template_variables, request.model)
        )
        return list((await self._off_loop(partial(_render, tokenizer, request))).tokens)

    async def tokenize(self, model: str | None, text: str, *, special: bool) -> list[int]:
        """The tokens of a text; with `special`, those that the model puts before any. Raises OmlxError."""
        tokenizer = await self._pool.tokenizer(model)
        return await self._off_loop(
            lambda: [int(each) for each in tokenizer.encode(text, add_special_tokens=special)]
        )

    async def detokenize(self, model: str | None, tokens: Sequence[int]) -> str:
        """Raises OmlxError, also for ids that are no tokens."""
        tokenizer = await self._pool.tokenizer(model)
        check_ids(tokens, tokenizer_length(tokenizer), "tokens")
        return await self._off_loop(lambda: str(tokenizer.decode(list(tokens))))

    def shut_down(self) -> None:
        self._text.shutdown(wait=False)

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._text, work)

    def _submit(self, stream: GenerationStream, request: GenerationRequest, texts: _Texts) -> None:
        """Choice i of prompt p is number p · n + i of the answer; each prompt's choices draw as if it were alone."""
        served = stream.served
        settings = served.speculation.settings
        self.newest[served.id] = texts.prompts[-1].tokens
        sampling = sampling_of(served, request.sampling)
        sampling = replace(
            sampling, seed=stream.seed, logit_bias=tuple(sorted(request.logit_bias.items()))
        )
        speculation = _speculation(request, served, texts.prediction)
        for number, (prompt, choice) in enumerate(
            itertools.product(texts.prompts, range(request.n))
        ):
            spec = _output(request, served, prompt)
            one = Request(
                id=f"{stream.id}-{number}",
                tokens=prompt.tokens,
                sampling=replace(sampling, choice=choice),
                max_tokens=request.max_tokens or settings.max_tokens,
                stop_ids=spec.stop_ids,
                stop=_watcher(served, spec),
                top_logprobs=request.top_logprobs,
                prompt_logprobs=request.prompt_logprobs,
                speculation=speculation,
                stable=prompt.stable,
                mask=_mask(request, served, prompt, texts),
            )
            stream.submit(one, spec, number)


def _with_defaults(request: GenerationRequest, variables: Mapping[str, Any]) -> GenerationRequest:
    """Variables of the template: the request's go before those that are set for the model."""
    return replace(request, template_variables={**variables, **request.template_variables})


def _output(request: GenerationRequest, served: ServedModel, prompt: Prompt) -> OutputSpec:
    use = request.tools
    goes_on = request.continue_last or bool(request.prompts or prompt.opening)
    return OutputSpec(
        stop_ids=served.stop_ids
        | (infill_token_ids(served.tokenizer) if request.suffix else frozenset()),
        stops=request.stops,
        thinking=prompt.thinking,
        context=prompt.tokens[-CONTEXT_TOKENS:] if goes_on else (),
        raw=bool(request.prompts),
        tools=use.functions if use is not None else (),
        opening=prompt.opening,
        single=use is not None and use.single,
    )


def _mask(
    request: GenerationRequest, served: ServedModel, prompt: Prompt, texts: _Texts
) -> TokenMask | None:
    """An answer that has to be a call has the form of calls and no other. One that must have a form begins with no
    thought where the request wants none; one that is free may."""
    forced = request.tools is not None and request.tools.forced
    answer = texts.calls if forced else texts.grammar
    if answer is None and (forced or texts.calls is None):
        return None
    fresh = not request.prompts and not request.continue_last
    begun = request.continue_last and not forced
    unwanted = answer is not None and request.template_variables.get("enable_thinking") is False
    preamble = Preamble(
        thinking=prompt.thinking,
        may_think=fresh and not unwanted,
        may_call=fresh and request.tools is not None and not forced,
        calls=None if forced else texts.calls,
        answer_prefix=str(request.messages[-1]["content"] or "") if begun else "",
    )
    return served.grammars.mask(answer, preamble)


def _watcher(served: ServedModel, spec: OutputSpec) -> StopMatcher | None:
    if spec.single:
        return OutputStopMatcher(served.tokenizer, spec)
    return StopStringMatcher(served.tokenizer, spec.stops, spec.context) if spec.stops else None


def _render(tokenizer: TokenizerWrapper, request: GenerationRequest) -> Prompt:
    return render(
        tokenizer,
        request.messages,
        request.template_variables,
        tools=request.tools,
        continue_last=request.continue_last,
    )


def _raw(served: ServedModel, request: GenerationRequest) -> list[Prompt]:
    """Prompts that are no conversations."""
    found = []
    for prompt in request.prompts:
        if not isinstance(prompt, str):
            check_ids(prompt, served.vocab_size, "prompt")
            found.append(prompt)
        elif request.suffix:
            found.append(infill_prompt(served.tokenizer, prompt, request.suffix))
        else:
            found.append(tuple(served.tokenizer.encode(prompt)))
    return [Prompt(tokens) for tokens in found]


def check_ids(tokens: Sequence[int], size: int, param: str) -> None:
    """Raise BadRequest for an id that is no token of a vocabulary of `size`."""
    wrong = next((token for token in tokens if token >= size), None)
    if wrong is not None:
        raise BadRequest("request.token", param=param, field=param, token=wrong, size=size)


def _tokenize(served: ServedModel, request: GenerationRequest) -> _Texts:
    grammar = served.grammars.compile(request.form) if request.form is not None else None
    calls = served.grammars.compile_tool_calls(request.tools) if request.tools is not None else None
    prompts = _raw(served, request) if request.prompts else [_render(served.tokenizer, request)]
    if not request.prediction:
        return _Texts(prompts, (), grammar, calls)
    prediction = tuple(served.tokenizer.encode(request.prediction, add_special_tokens=False))
    if len(prediction) > served.context_length:
        raise BadRequest(
            "request.prediction_too_long",
            param="prediction",
            tokens=len(prediction),
            limit=served.context_length,
        )
    return _Texts(prompts, prediction, grammar, calls)


def _speculation(
    request: GenerationRequest, served: ServedModel, prediction: tuple[int, ...]
) -> Speculation:
    """To name a draft is to ask for speculation, whatever the settings say."""
    asked = request.speculation
    if asked is None:
        asked = AUTO if request.draft_model is not None else served.speculation.strategy
    if prediction and not asked.off and asked.step("ngram") is None:
        unused = Reason("strategy.prediction_unused", {"strategy": str(asked)})
        asked = replace(asked, notes=(*asked.notes, unused))
    draft_length = DraftLength.merge(request.draft_length, served.speculation.draft_length)
    return Speculation(asked, draft_length, prediction)


def _check(request: GenerationRequest, served: ServedModel) -> None:
    """What can only be known with the model at hand. The length of the prompt is the engine's to judge.

    Whoever asks for a drafter by name hears why there is none; `auto` takes what there is.
    """
    names = (
        {step.name for step in request.speculation.steps}
        if request.speculation is not None
        else set()
    )
    if served.off is not None and names & {"draft", "ngram"}:
        raise BadRequest(served.off.code, param="speculation", **served.off.params)
    if "draft" in names and served.no_draft is not None:
        raise BadRequest(served.no_draft.code, param="speculation", **served.no_draft.params)
    for token in request.logit_bias:
        if not 0 <= token < served.vocab_size:
            raise BadRequest(
                "request.logit_bias", param="logit_bias", token=token, vocab_size=served.vocab_size
            )


def sampling_of(served: ServedModel, asked: Mapping[str, float]) -> Sampling:
    """What a request asks for, over the settings, over the model's own files.

    `top_p` 0 means the one most likely token; the engine says that with `top_k`.
    """
    values: dict[str, Any] = {
        **served.sampling,
        **sampling_in(served.speculation.settings),
        **asked,
    }
    if values.get("top_p") == 0:
        values |= {"top_p": 1.0, "top_k": 1}
    return Sampling(**values)


def sampling_in(given: object) -> dict[str, float]:
    """What settings or a body say of sampling; None says nothing."""
    values = {name: getattr(given, name) for name in SAMPLING}
    return {name: value for name, value in values.items() if value is not None}
