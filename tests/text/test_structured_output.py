"""Many schemas on the bundled models and a real engine: every answer is valid, and no strategy
changes a token.
"""

from __future__ import annotations

import functools
import gc
import json
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

import jsonschema
import pytest

from omlx.engine.build import build_loop
from omlx.engine.speculation.strategy import parse
from omlx.engine.types import (
    Finished,
    FinishReason,
    Limits,
    Request,
    Sampling,
    Speculation,
    TokensCommitted,
)
from omlx.errors import BadRequest
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from omlx.models.pool.load_weights import LoadedModel, load
from omlx.text.grammar import (
    CACHE_SIZE,
    GrammarCache,
    GrammarCompiler,
    GrammarKind,
    Preamble,
    StructuredOutput,
)
from tests.lanes import few
from tests.schemas import SCHEMAS

WARM = Sampling(temperature=0.8, seed=7)
GREEDY = Sampling(temperature=0.0)
SOME = (
    "nested",
    "array of objects",
    "enum beyond ascii",
    "tagged",
    "uuid",
    "list that ends",
    "a tool's call",
)
MAX_TOKENS = 700


@functools.cache
def weights(name: str) -> LoadedModel:
    return load(ModelEntry(name, BUNDLED / name, "bundled"), "auto")


@functools.cache
def grammars() -> GrammarCompiler:
    target = weights("omlx-demo/target")
    return GrammarCompiler(target.tokenizer, target.stop_ids)


@functools.cache
def prompt() -> tuple[int, ...]:
    messages = [{"role": "user", "content": "Answer in JSON."}]
    return tuple(
        weights("omlx-demo/target").tokenizer.apply_chat_template(
            messages, add_generation_prompt=True
        )
    )


class Answers:
    """What a loop says to schemas, by name, and what its drafters did."""

    def __init__(self, strategy: str, sampling: Sampling, window: int | None) -> None:
        target, draft = weights("omlx-demo/target"), weights("omlx-demo/draft")
        limits = Limits(context_length=4096, num_draft_tokens=window)
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.proposed: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self._loop = build_loop(
            target.model, target.vocab_size, limits, draft=draft.model, draft_name="draft"
        )
        self._strategy, self._sampling = parse(strategy), sampling

    def give(self, names: Sequence[str]) -> Answers:
        """All at the same time; each must end by itself."""
        for name in names:
            self._loop.submit(self._request(name))
        while self._loop.has_work:
            for event in self._loop.step():
                if isinstance(event, TokensCommitted):
                    self.tokens[event.request_id] += event.tokens
                elif isinstance(event, Finished):
                    assert event.reason is FinishReason.STOP, event.request_id
                    for drafter, did in event.stats.drafters.items():
                        self.proposed[drafter] += did.proposed
                        self.accepted[drafter] += did.accepted
            self._loop.check()
        assert set(names) <= set(self.tokens)
        return self

    def text(self, name: str) -> str:
        target = weights("omlx-demo/target")
        return str(
            target.tokenizer.decode(
                [token for token in self.tokens[name] if token not in target.stop_ids]
            )
        )

    def _request(self, name: str) -> Request:
        form = StructuredOutput(GrammarKind.JSON, json.dumps(SCHEMAS[name]), "form")
        return Request(
            id=name,
            tokens=prompt(),
            sampling=self._sampling,
            max_tokens=MAX_TOKENS,
            stop_ids=weights("omlx-demo/target").stop_ids,
            speculation=Speculation(self._strategy),
            mask=grammars().mask(grammars().compile(form), Preamble()),
        )


@functools.cache
def plain_answers(sampling: Sampling) -> Answers:
    """One loop for all of them: what a loop measures when it begins takes longer than an answer."""
    return Answers("off", sampling, None)


def plain(sampling: Sampling, name: str) -> Answers:
    answers = plain_answers(sampling)
    return answers if name in answers.tokens else answers.give([name])


def prove(names: Sequence[str], strategy: str, sampling: Sampling, window: int | None) -> Answers:
    """One after another: valid, and what plain decoding says."""
    answers = Answers(strategy, sampling, window)
    for name in names:
        answers.give([name])
        jsonschema.validate(json.loads(answers.text(name)), SCHEMAS[name])
        assert answers.tokens[name] == plain(sampling, name).tokens[name], name
    assert answers.proposed["forced"] == answers.accepted["forced"] > 0
    return answers


def test_there_are_many() -> None:
    assert len(SCHEMAS) >= 60
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("strategy", "window"), few([("draft", 4), ("ngram", 6), ("auto", None)], ("draft", 4))
)
def test_some_schemas(strategy: str, window: int | None) -> None:
    answers = prove(SOME, strategy, WARM, window)
    assert strategy != "draft" or answers.accepted["draft"] > 0
    assert strategy != "ngram" or answers.accepted["ngram"] > 0


def test_some_schemas_at_the_same_time() -> None:
    answers = Answers("auto", WARM, 4).give(SOME)
    assert answers.tokens == {name: plain(WARM, name).tokens[name] for name in SOME}


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["cold", "warm"])
@pytest.mark.parametrize(
    ("strategy", "window"), [("off", None), ("draft", 4), ("ngram", 6), ("auto", 4), ("auto", None)]
)
def test_every_schema(strategy: str, window: int | None, sampling: Sampling) -> None:
    if strategy == "off":
        for name in SCHEMAS:
            jsonschema.validate(json.loads(plain(sampling, name).text(name)), SCHEMAS[name])
    else:
        prove(tuple(SCHEMAS), strategy, sampling, window)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["cold", "warm"])
def test_every_schema_in_a_batch(sampling: Sampling) -> None:
    answers = Answers("auto", sampling, 4).give(tuple(SCHEMAS))
    assert answers.tokens == {name: plain(sampling, name).tokens[name] for name in SCHEMAS}


def test_each_source_is_compiled_once_and_the_oldest_is_evicted() -> None:
    cache, compiled = GrammarCache[str](), []

    def compile(source: str) -> str:
        compiled.append(source)
        return source.upper()

    for source in ("a", "b", "a"):
        assert cache.get(source, partial(compile, source)) == source.upper()
    assert compiled == ["a", "b"]
    for number in range(CACHE_SIZE - 1):
        cache.get(f"other {number}", str)
    cache.get("a", lambda: compile("a"))
    cache.get("b", lambda: compile("b"))
    assert compiled == ["a", "b", "b"]


def test_a_refusal_is_cached() -> None:
    cache, tried = GrammarCache[str](), []

    def refuse() -> str:
        tried.append(1)
        raise BadRequest("format.invalid", param="x", field="x", detail="too large")

    for _ in range(3):
        with pytest.raises(BadRequest) as caught:
            cache.get("a", refuse)
        assert (caught.value.code, caught.value.params["detail"]) == ("format.invalid", "too large")
    assert len(tried) == 1


class Matcher:
    """Stands for megabytes of a compiled grammar."""


def test_a_cached_refusal_holds_nothing_that_was_compiled() -> None:
    cache, matchers = GrammarCache[str](), []

    def compile() -> str:
        matcher = Matcher()
        matchers.append(weakref.ref(matcher))
        try:
            raise ValueError("nothing has this form")
        except ValueError as error:
            raise BadRequest(
                "format.invalid", param="guided_choice", field="guided_choice"
            ) from error

    for _ in range(2):
        with pytest.raises(BadRequest):
            cache.get("a", compile)
    gc.collect()
    (matcher,) = matchers
    assert matcher() is None
