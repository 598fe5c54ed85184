"""*Try a draft*: the gain of speculation with a model on this machine.

Runs three to five rounds of ordinary requests. Prompts and answers stay in memory; a report has
neither.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from omlx.engine.speculation.strategy import parse
from omlx.engine.types import Request, Speculation
from omlx.engine.vision.spans import ImageSpan, PreparedImage
from omlx.errors import BadRequest, ModelError, OmlxError, Reason
from omlx.measure.results import Conditions, ResultStore, StoredResult
from omlx.measure.runner import Measurement, Runner, State, stop_bias
from omlx.measure.sample import Spread, rotate
from omlx.measure.samples import (
    PLAIN,
    Place,
    Samples,
    TrialConfiguration,
    Verdict,
    Visit,
    configurations,
    verdict,
    visits,
)
from omlx.measure.texts import Kind, Question, question
from omlx.models.pool.load_queue import LoadJob
from omlx.models.pool.pool import Pool
from omlx.models.pool.served import Lease, ServedModel
from omlx.server.http.transport import Json
from omlx.server.request.content import image_part, text_part
from omlx.server.request.engine_requests import sampling_of
from omlx.server.request.generation import GenerationService
from omlx.server.request.generation_request import GenerationRequest

MIN_ROUNDS: Final = 3
MAX_ROUNDS: Final = 5
WARM_UP_TOKENS: Final = 16
"""Tokens — length of the uncounted answers by which a visit warms up."""

CONTEXT_TOKENS: Final = 4096
"""Tokens — the newest of a conversation, if longer."""

PICTURE_FIELD: Final = "picture"
"""A trial's form field with an image."""


_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids with images at `spans`. `greedy` and `ends` as in `Question`."""

    tokens: tuple[int, ...]
    greedy: bool
    ends: bool
    seed: int
    spans: tuple[ImageSpan, ...] = ()
    images: tuple[PreparedImage, ...] = ()


async def read_prompt(
    generations: GenerationService, model: str, question: Question, seed: int, picture: str = ""
) -> Prompt:
    """Tokenize a question through the chat template, or as plain text without one.

    `picture`: data URI of the image in question. Raises OmlxError.
    """
    content: str | list[Json] = question.text
    if picture:
        content = [image_part("image_url", picture, None, PICTURE_FIELD), text_part(question.text)]
    messages = [{"role": "user", "content": content}]
    try:
        prompt = await generations.prompt(GenerationRequest(messages=messages, model=model))
    except BadRequest as error:
        if picture or error.code != "template.missing":
            raise
        tokens = await generations.tokenize(model, question.text, special=True, param="prompt")
        return Prompt(tuple(tokens), question.greedy, question.ends, seed)
    return Prompt(prompt.tokens, question.greedy, question.ends, seed, prompt.spans, prompt.images)


@dataclass(frozen=True, slots=True)
class Plan:
    """A model, its drafts by id, kinds of text, answers of at most `tokens` tokens.

    `conversation`: token ids of the model's last prompt. `picture`: data URI of an image. Both only
    for their kinds.
    """

    model: str
    drafts: tuple[str, ...]
    kinds: tuple[Kind, ...]
    tokens: int
    conversation: tuple[int, ...] = ()
    picture: str = ""

    @property
    def configurations(self) -> tuple[TrialConfiguration, ...]:
        return configurations(self.drafts)

    @property
    def visits(self) -> tuple[Visit, ...]:
        return visits(self.drafts)

    @property
    def answers(self) -> int:
        """Samples per round."""
        return len(self.kinds) * sum(len(visit.configurations) for visit in self.visits)


class Trial(Measurement):
    """A trial of a plan. `rounds` grows while the verdict is undecided.

    `now`: place of the running sample, with `now_tokens` so far; None during warm-up and pauses.
    """

    RUNNING = "trial.running"
    HELD = "trial.unload"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.model)
        self.plan = plan
        self.samples = Samples()
        self.verdict: Verdict | None = None
        self.rounds = MIN_ROUNDS
        self.now: Place | None = None
        self.now_tokens = 0
        self._warm: ServedModel | None = None

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model, *self.plan.drafts)

    @property
    def done(self) -> int:
        return len(self.samples.by_place)

    @property
    def total(self) -> int:
        return self.rounds * self.plan.answers

    @property
    def share(self) -> float:
        return self.done / self.total

    async def measure(self, runner: Runner) -> None:
        """Measure until the verdict, then restore the model's configured draft."""
        plan = self.plan
        try:
            while (number := self.done // plan.answers) < self.rounds:
                await self._run_round(runner, number)
                last = number + 1 == self.rounds < MAX_ROUNDS
                if last and self.samples.undecided(plan.configurations, plan.kinds):
                    self.rounds += 1
        finally:
            self._warm = self.now = None
            with suppress(OmlxError):  # the model may be gone
                await _restore_draft(runner.pool, self.model)
        self.verdict = verdict(self.samples, plan.configurations, plan.kinds)

    async def _run_round(self, runner: Runner, number: int) -> None:
        # All configurations of a round share a seed.
        plan, seed = self.plan, number + 1
        prompts: dict[Kind, Prompt] = {}
        for kind in plan.kinds:
            if kind is Kind.CONVERSATION:
                tokens = plan.conversation[-CONTEXT_TOKENS:]
                prompts[kind] = Prompt(tokens, greedy=False, ends=True, seed=seed)
                continue
            picture = plan.picture if kind is Kind.PICTURE else ""
            asked = question(kind, number)
            prompts[kind] = await read_prompt(runner.generations, plan.model, asked, seed, picture)
        for visit in rotate(plan.visits, number):
            for kind, configuration in visit.order(plan.kinds, number):
                place = Place(number, visit.draft, kind, configuration)
                await self._run_sample(runner, visit, place, prompts[kind])

    async def _run_sample(self, runner: Runner, visit: Visit, place: Place, prompt: Prompt) -> None:
        """Repeat the sample until no user request interrupts."""
        while place not in self.samples.by_place:
            lease = await self._lease(runner, visit)
            # A reloaded model has a cold cost model.
            if lease.served is not self._warm:
                lease.release()
                await self._warm_up(runner, visit, prompt)
                continue
            started = time.perf_counter()
            self.now, self.now_tokens = place, 0
            self.change()
            request = build_request(prompt, place.configuration, self.plan.tokens, lease.served)
            streams = await runner.run(lease, [request], self._set_tokens)
            self.now = None
            if streams is None:
                self.discarded += 1
            else:
                self.spent_s += time.perf_counter() - started
                self.samples.by_place[place] = streams.alone
            self.change()

    async def _warm_up(self, runner: Runner, visit: Visit, prompt: Prompt) -> None:
        """Run every configuration briefly: compiles kernels, loads pages, fills the cost model.

        Returns early when a user's request arrives or the model was replaced.
        """
        served: ServedModel | None = None
        for configuration in visit.configurations:
            lease = await self._lease(runner, visit)
            if served not in (None, lease.served):
                lease.release()
                return
            served = lease.served
            request = build_request(prompt, configuration, WARM_UP_TOKENS, served)
            if await runner.run(lease, [request], lambda tokens: None) is None:
                return
        self._warm = served

    async def _lease(self, runner: Runner, visit: Visit) -> Lease:
        """Lease the model with the visit's draft.

        Raises ModelError if speculation is impossible because the cache cannot be rewound.
        """
        lease = await runner.lease(self, visit.draft)
        reason = lease.served.off_reason
        if reason is not None:
            lease.release()
            raise ModelError(reason.code, param=None, **reason.params)
        return lease

    def _set_tokens(self, tokens: int) -> None:
        self.now_tokens = tokens
        self.change()

    def report(self) -> Json:
        """Add plan and cells: null if not measured yet."""
        plan, samples = self.plan, self.samples
        now = None
        if self.now is not None:
            setup, kind = self.now.configuration.name, self.now.kind.value
            now = {"setup": setup, "kind": kind, "tokens": self.now_tokens}
        return {
            **super().report(),
            "drafts": list(plan.drafts),
            "kinds": [kind.value for kind in plan.kinds],
            "tokens": plan.tokens,
            "done": self.done,
            "total": self.total,
            "rounds": self.rounds,
            "most_rounds": MAX_ROUNDS,
            "now": now,
            "setups": [configuration.to_json() for configuration in plan.configurations],
            "cells": [
                _cell(samples, configuration, kind)
                for configuration in plan.configurations
                for kind in plan.kinds
            ],
            "exact": _exactness(samples),
            "draft_error": _draft_error(samples),
            "verdict": None if self.verdict is None else self.verdict.to_json(),
        }

    def save(self, store: ResultStore, at: float, conditions: Conditions) -> None:
        record = {**self.report(), "state": State.DONE.value}
        drafts = {}
        for draft in self.plan.drafts:
            auto = TrialConfiguration("auto", draft)
            # An earlier figure stays where the machine gave none that a repeat would confirm.
            if not any(self.samples.unsteady(auto, kind) for kind in self.plan.kinds):
                result = self._draft_record(auto)
                drafts[draft] = StoredResult(result, at, conditions)
        store.save_trial(self.model, StoredResult(record, at, conditions), drafts)

    def _draft_record(self, configuration: TrialConfiguration) -> Json:
        """Return the speed-ups of `configuration` for the draft picker."""
        overall, kinds = list(self.samples.overall(configuration).values()), {}
        for kind in self.plan.kinds:
            spread = self.samples.spread(configuration, kind)
            if spread is not None:
                kinds[kind.value] = _speedup(spread)
        return {"overall": _speedup(Spread.of(overall)) if overall else None, "kinds": kinds}


def build_request(
    prompt: Prompt, configuration: TrialConfiguration, tokens: int, served: ServedModel
) -> Request:
    """Return an engine request of at most `tokens` tokens, sampled as the model's settings say."""
    sampling = sampling_of(served, {"temperature": 0.0} if prompt.greedy else {})
    bias = () if prompt.ends else stop_bias(served)
    strategy = parse(configuration.strategy).with_draft_as(served.draft_kind)
    return Request(
        id=f"trial-{next(_ids)}",
        tokens=prompt.tokens,
        sampling=replace(sampling, seed=prompt.seed, logit_bias=bias),
        max_tokens=tokens,
        stop_ids=served.stop_ids,
        speculation=Speculation(strategy, served.speculation.draft_length),
        spans=prompt.spans,
        images=prompt.images,
    )


async def _restore_draft(pool: Pool, model: str) -> None:
    """Reload the configured draft when idle, if the trial left another resident."""
    entry, resident = pool.resolve(model), pool.residents.find(model)
    drafting = (await asyncio.to_thread(pool.speculation, model)).active_draft
    configured = drafting.id if drafting is not None else None
    if resident is not None and resident.served.draft != configured:
        pool.load_queue.submit(LoadJob(entry, reload=True))


def _cell(samples: Samples, configuration: TrialConfiguration, kind: Kind) -> Json:
    """Return a configuration's figures for a kind of text; `rate` in tokens per second.

    `busy`: too few undisturbed samples because of other programs; `noise`: the factor by which the
    rounds differ, if too much. Either leaves no rate and no speed-up.
    """
    rates, busy = samples.rates(configuration, kind), samples.busy(configuration, kind)
    spread, noise = samples.spread(configuration, kind), samples.noise(configuration, kind)
    if busy or noise or configuration == PLAIN:  # plain decoding is its own reference
        spread = None
    acceptance = samples.acceptance_rate(configuration, kind)
    return {
        "setup": configuration.name,
        "kind": kind.value,
        "samples": len(rates),
        "rate": Spread.of(rates).to_json(1) if rates and not (busy or noise) else None,
        "speedup": None if spread is None else _speedup(spread),
        "acceptance": None if acceptance is None else round(acceptance, 3),
        "busy": busy,
        "noise": None if noise is None else round(noise, 1),
    }


def _speedup(spread: Spread) -> Json:
    return {**spread.to_json(3), "gain": spread.gain.value}


def _draft_error(samples: Samples) -> Json | None:
    """Return the number of answers with a failed drafter and the first error, if any."""
    found = (sample.draft_error for sample in samples.by_place.values())
    errors = [error for error in found if error is not None]
    if not errors:
        return None
    counts = {"failed": len(errors), "of": len(samples.by_place)}
    return Reason("trial.draft_failed", {**counts, "detail": errors[0]}).to_json()


def _exactness(samples: Samples) -> Json | None:
    """None: no answer had a plain reference."""
    compared, first = samples.exactness(), None
    if not compared.of:
        return None
    if compared.first is not None:
        place, token = compared.first
        first = {
            "kind": place.kind.value,
            "round": place.number + 1,
            "setup": place.configuration.name,
            "token": token,
        }
    code = "trial.exact.same" if compared.same == compared.of else "trial.exact.differ"
    counts: dict[str, Any] = {"same": compared.same, "of": compared.of}
    return {**counts, "first": first, **Reason(code, counts).to_json()}
