"""Masks with rules a reader can follow."""

from __future__ import annotations

from collections.abc import Callable

from omlx.engine.step.masking import with_ids
from omlx.errors import EngineError
from tests import zoo

Rule = Callable[[list[int]], set[int] | None]
"""From what was said to what may be said next; nothing at all: the end."""


class Ruled:
    """Implements `TokenMask` by a rule. Raises at the token number `breaks_at`."""

    def __init__(self, rule: Rule, breaks_at: int | None = None) -> None:
        self.tokens: list[int] = []
        self.deepest = 0
        self._rule = rule
        self._breaks_at = breaks_at

    @property
    def ended(self) -> bool:
        return self._rule(self.tokens) == set()

    @property
    def free(self) -> int:
        return 0

    def bits(self) -> bytes | None:
        if len(self.tokens) == self._breaks_at:
            raise EngineError("engine.grammar", detail="breaks here")
        allowed = self._rule(self.tokens)
        return None if allowed is None else with_ids(bytes((zoo.VOCAB_SIZE + 7) // 8), allowed)

    def advance(self, token: int) -> bool:
        allowed = self._rule(self.tokens)
        if allowed is not None and token not in allowed:
            return False
        self.tokens.append(token)
        self.deepest = max(self.deepest, len(self.tokens))
        return True

    def rollback(self, n: int) -> None:
        assert 0 <= n <= len(self.tokens)
        del self.tokens[len(self.tokens) - n :]


class LateRule(Ruled):
    """Allows everything for the first `start` tokens, says so if `open`, then follows the rule."""

    def __init__(self, rule: Rule, start: int, *, open: bool) -> None:
        super().__init__(lambda said: None if len(said) < start else rule(said[start:]))
        self._start, self._open = start, open

    @property
    def free(self) -> int:
        return max(0, self._start - len(self.tokens)) if self._open else 0


def thirds(said: list[int]) -> set[int]:
    """A third of all ids, which one depends on everything that was said."""
    return {token for token in range(zoo.VOCAB_SIZE) if token % 3 == (sum(said) + len(said)) % 3}


def formal(said: list[int]) -> set[int] | None:
    """Like a form: runs that must come, places with a choice, and some that are free."""
    place = len(said) % 10
    if place < 5:
        return {(11 * len(said) + (said[-1] if said else 0)) % zoo.VOCAB_SIZE}
    return None if place == 9 else thirds(said)


def until(rule: Rule, n: int) -> Rule:
    """The same, and the end behind n tokens."""
    return lambda said: rule(said) if len(said) < n else set()


def only_even(said: list[int]) -> set[int]:
    return set(range(0, zoo.VOCAB_SIZE, 2))
