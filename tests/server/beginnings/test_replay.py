"""First turns of five agents over five days: what is computed again, and that answers are equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from mlx_lm.tokenizer_utils import load as load_tokenizer

from omlx.engine.prefix import reuse
from omlx.models.catalog.discovery import BUNDLED
from omlx.server.beginnings.foresight import foresee
from omlx.server.beginnings.prewarmer import MAX_BEGINNINGS, Tokenized, tokenize
from omlx.server.beginnings.store import BeginningStore
from tests.engine.harness import LIMITS, Bench, loop_of, request
from tests.server.beginnings.agents import AGENTS, sessions
from tests.server.running import TARGET
from tests.zoo import VOCAB_SIZE

CONTEXT = 8192
FIRST = 2 * len(AGENTS)
"""Sessions until each agent has begun two: nothing can be foreseen before."""


@dataclass(frozen=True)
class Session:
    """A first turn, and what was computed ahead of it while idle."""

    number: int
    idle: Sequence[Tokenized]
    tokens: tuple[int, ...]


@dataclass
class Wall:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> list[Session]:
    return list(
        replay(BeginningStore(tmp_path_factory.mktemp("home"), wall=(wall := Wall())), wall)
    )


def replay(store: BeginningStore, wall: Wall) -> Iterator[Session]:
    tokenizer, known = (
        load_tokenizer(BUNDLED / TARGET),
        dict[tuple[str, tuple[int, ...]], Tokenized](),
    )
    for number, (client, moment) in enumerate(sessions()):
        wall.now = moment.at.timestamp()
        expected = foresee(store.known("m"), wall.now)[:MAX_BEGINNINGS]
        for one in expected:
            if (name := (one.beginning.key, one.spans)) not in known:
                known[name] = tokenize(tokenizer, CONTEXT, one)
        idle = [known[one.beginning.key, one.spans] for one in expected]
        beginning = AGENTS[client](moment)
        yield Session(number, idle, beginning.tokens(tokenizer, CONTEXT))
        store.note("m", beginning, client, 1)


def ids(tokens: Sequence[int]) -> tuple[int, ...]:
    """Ids of the tiny models."""
    return tuple(token % VOCAB_SIZE for token in tokens)


@dataclass
class Played:
    """Tokens computed by first turns and while idle; answers."""

    asked: list[int] = field(default_factory=list)
    idle: int = 0
    answers: list[list[int]] = field(default_factory=list)


def play(family: str, replayed: Sequence[Session], *, prewarms: bool, cold: bool = False) -> Played:
    limits = replace(LIMITS, context_length=CONTEXT, block_tokens=64)
    if cold:
        limits = replace(limits, prefix_bytes=0)
    bench, played = Bench(loop_of(family, limits=limits), check=False), Played()
    done = set[tuple[int, ...]]()
    for session in replayed:
        bench.steps, number = 0, session.number
        for one in session.idle if prewarms else ():
            for stop in (*one.spans, len(one.tokens)):
                tokens = ids((*one.tokens[:stop], one.tokens[-1]))
                if tokens not in done and bench.loop.cached_prefix(tokens) < stop:
                    ahead = request(f"{number} {len(done)}", tokens, max_tokens=0, stable=stop)
                    bench.run(ahead)
                    played.idle += stop - bench.stats(ahead.id).cached_n
                done.add(tokens)
        tokens = ids((*session.tokens, session.number, *range(20, 40)))
        one = request(str(number), tokens, max_tokens=4, stable=len(tokens) - 4)
        bench.run(one)
        played.asked.append(max(0, len(session.tokens) - bench.stats(one.id).cached_n))
        played.answers.append(bench.tokens[one.id])
    return played


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "share"),
    [("llama", 0.03), ("gemma3_text", 0.03), ("qwen3_next", 0.03)],
)
def test_five_days_compute_a_fraction_of_what_plain_caching_does(
    family: str, share: float, replayed: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    foreseeing = play(family, replayed, prewarms=True)
    monkeypatch.setattr(reuse, "BRANCH_TOKENS", CONTEXT)  # no state is saved before a parting
    plain = play(family, replayed, prewarms=False)
    assert sum(foreseeing.asked[FIRST:]) <= share * sum(plain.asked[FIRST:])
    assert foreseeing.answers == plain.answers
    some = range(FIRST, len(replayed), 8)
    cold = play(family, [replayed[number] for number in some], prewarms=False, cold=True)
    assert cold.answers == [foreseeing.answers[number] for number in some]
