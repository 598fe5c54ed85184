"""From a request, neutral between the APIs, to a running stream:

GenerationRequest ─► lease a model ─► render ─► n engine requests ─► GenerationStream
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from omlx.engine.spec import strategy
from omlx.engine.spec.strategy import Strategy, WindowBounds
from omlx.engine.types import Request, Sampling, Speculation
from omlx.errors import BadRequest
from omlx.models.pool import Pool, Served
from omlx.server.stream import Engine, GenerationStream, Router
from omlx.settings.schema import Settings
from omlx.text.output import OutputSpec
from omlx.text.stops import StopWatcher
from omlx.text.template import Message, Prompt, render

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


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What any dialect asks for. None, or a name missing from `sampling`, leaves it to the defaults."""

    messages: Sequence[Message]
    model: str | None = None
    draft_model: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    continue_last: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    top_logprobs: int | None = None
    speculation: Strategy | None = None
    num_draft_tokens: int | None = None


class Generations:
    """Opens streams. What a request leaves open is decided by the settings, then by the model's own files."""

    def __init__(self, engine: Engine, pool: Pool, settings: Settings) -> None:
        self._engine = engine
        self._pool = pool
        self._settings = settings
        self._router = Router(asyncio.get_running_loop())
        # One thread: templates and tokenizers of long prompts stay off the event loop, and see one caller at a time.
        self._text = ThreadPoolExecutor(1, "omlx-text")

    async def open(self, request: GenerationRequest, prefix: str) -> GenerationStream:
        """Start every choice. Raises OmlxError; then nothing runs. The caller must close the stream.

        Waits while the model loads; its id begins with `prefix`.
        """
        if self._engine.failure is not None:
            raise self._engine.failure
        lease = await self._pool.lease(request.model, request.draft_model)
        stream = None
        try:
            prompt = await self._render(lease.served, request)
            _check(request, lease.served)
            seed = secrets.randbits(63) if request.seed is None else request.seed
            stream = GenerationStream(self._engine, self._router, lease, f"{prefix}-{uuid.uuid4().hex}", seed)
            self._submit(stream, request, prompt)
        except BaseException:
            if stream is None:
                lease.release()
            else:
                stream.close()
            raise
        return stream

    def shut_down(self) -> None:
        self._text.shutdown(wait=False)

    async def _render(self, served: Served, request: GenerationRequest) -> Prompt:
        work = partial(
            render,
            served.tokenizer,
            request.messages,
            request.template_variables,
            continue_last=request.continue_last,
        )
        return await asyncio.get_running_loop().run_in_executor(self._text, work)

    def _submit(self, stream: GenerationStream, request: GenerationRequest, prompt: Prompt) -> None:
        served = stream.served
        context = prompt.tokens[-CONTEXT_TOKENS:] if request.continue_last else ()
        spec = OutputSpec(served.stop_ids, request.stops, prompt.thinking, context)
        settings = self._settings
        sampling = _sampling({**served.sampling, **_given(settings), **request.sampling})
        sampling = replace(sampling, seed=stream.seed, logit_bias=tuple(sorted(request.logit_bias.items())))
        for choice in range(request.n):
            stream.submit(
                Request(
                    id=f"{stream.id}-{choice}",
                    tokens=prompt.tokens,
                    sampling=replace(sampling, choice=choice),
                    max_tokens=request.max_tokens or settings.max_tokens,
                    stop_ids=served.stop_ids,
                    stop=StopWatcher(served.tokenizer, request.stops, context) if request.stops else None,
                    top_logprobs=request.top_logprobs,
                    speculation=self._speculation(request),
                ),
                spec,
            )

    def _speculation(self, request: GenerationRequest) -> Speculation:
        """To name a draft is to ask for speculation, whatever the settings say."""
        asked = request.speculation
        if asked is None:
            asked = strategy.AUTO if request.draft_model is not None else strategy.parse(self._settings.speculation)
        fixed = request.num_draft_tokens
        return Speculation(asked, None if fixed is None else WindowBounds.fixed_at(fixed))


def _check(request: GenerationRequest, served: Served) -> None:
    """What can only be known with the model at hand. The length of the prompt is the engine's to judge."""
    steps = request.speculation.steps if request.speculation is not None else ()
    if any(step.name == "draft" for step in steps) and served.no_draft is not None:
        raise BadRequest(served.no_draft.code, param="speculation", **served.no_draft.params)
    for token in request.logit_bias:
        if not 0 <= token < served.vocab_size:
            raise BadRequest("request.logit_bias", param="logit_bias", token=token, vocab_size=served.vocab_size)


def _given(settings: Settings) -> dict[str, float]:
    """The sampling settings that somebody has set."""
    values = {name: getattr(settings, name) for name in SAMPLING}
    return {name: value for name, value in values.items() if value is not None}


def _sampling(values: Mapping[str, float]) -> Sampling:
    """`top_p` 0 means the one most likely token; the engine says that with `top_k`."""
    values = dict(values)
    if values.get("top_p") == 0:
        values |= {"top_p": 1.0, "top_k": 1}
    return Sampling(**{"top_k": int(values.pop("top_k", 0)), **values})  # type: ignore[arg-type]
