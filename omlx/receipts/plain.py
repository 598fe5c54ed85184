"""Plain decoding of one answer, alone: the reference for speculation, batches and prefixes.

The answer is teacher-forced: each token is chosen after the answer's own tokens, so that a near-tie
does not end the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING, Final, cast

import mlx.core as mx

from omlx.engine.device.sampling import Draw, RowSampler, draw, noise, permit, process
from omlx.engine.memory import SMALL, stepped
from omlx.engine.step.masking import allows
from omlx.engine.step.requests import truncate_at_stop
from omlx.engine.types import FinishReason, Request
from omlx.errors import Reason
from omlx.exactness import TOLERANCE

if TYPE_CHECKING:
    from omlx.engine.device.model import Cache
    from omlx.engine.loop import ModelForTexts

PASSES: Final = 8
"""Single-token passes computed between two steps of running requests."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Token number `place` of an answer, counted from 0, which plain decoding does not choose.

    `margin`: the change of logits needed to choose `answered` instead of `decoded`; infinite if
    impossible, or if the answer ends at another place.
    """

    place: int
    answered: int
    decoded: int
    margin: float


class PlainDecoding:
    """Decoding of `request` along a non-empty `answer`, which ended with `finish`.

    `advance` fills `near_ties` and `difference`; `wrong_end` says why the answer should have ended
    elsewhere. Within `tolerance`, in logits, rounding may decide.
    """

    def __init__(self, request: Request, answer: Sequence[int], finish: FinishReason) -> None:
        self.near_ties: list[Difference] = []
        self.difference: Difference | None = None
        self.wrong_end: Reason | None = None
        self.tolerance = 0.0
        self._request, self._answer, self._finish = request, answer, finish
        self._tokens = (*request.tokens, *answer)
        self._read = 0
        self._cache: Cache = []
        self._sampler: RowSampler | None = None

    def advance(self, loaded: ModelForTexts) -> bool:
        """Compute a prompt chunk or up to `PASSES` answer tokens. Return whether decoding is
        complete.

        Call on the engine thread, with a model entirely in this process. Raises Overloaded if the
        KV cache does not fit beside those of running requests.
        """
        if not self._read:
            self._make_room(loaded)
            self._cache = loaded.make_cache()
            self._sampler = RowSampler(self._request.sampling, loaded.limits.vocab_size)
        unread = self._request.tokens[self._read : -1]
        if unread:
            bounds = loaded.limits.bounds  # a strict model reads its prompts in other chunks
            most = loaded.limits.prefill_slice if bounds is None else bounds.grid
            chunk = unread[:most]
            loaded.model(mx.array([chunk], mx.uint32), cache=self._cache)
            mx.eval([layer.state for layer in self._cache])
            self._read += len(chunk)
            return False
        places = self._choose_some(loaded)
        mx.eval([place.chosen for place in places])
        agree = all(self._compare(place) for place in places)
        if agree and self._left and self.wrong_end is None:
            return False
        self._cache = []
        return True

    def _make_room(self, loaded: ModelForTexts) -> None:
        """Evict prefixes if the KV cache would exceed the soft limit of memory. Raises
        Overloaded.
        """
        tokens = len(self._tokens)
        if tokens <= SMALL:
            return
        memory, layout = loaded.memory, loaded.layout
        need = layout.cache_bytes(stepped(tokens))
        excess = memory.excess(need, memory.clients)
        if excess > sum(client.cached for client in memory.clients):
            raise memory.refusal(need)
        memory.evict_prefixes(excess)

    @property
    def _left(self) -> int:
        """Answer tokens not chosen yet."""
        return len(self._tokens) - 1 - self._read

    def _choose_some(self, loaded: ModelForTexts) -> list[_Place]:
        places: list[_Place] = []
        while len(places) < PASSES and self._left and self.wrong_end is None:
            places.append(self._choose(loaded))
            if not places[-1].possible:
                break
        return places

    def _choose(self, loaded: ModelForTexts) -> _Place:
        """Read the newest known token and choose the next, without waiting for the device."""
        sampler, request = self._sampler, self._request
        assert sampler is not None
        ids = mx.array([[self._tokens[self._read]]], mx.uint32)
        logits = loaded.model(ids, cache=self._cache)[:, -1, : sampler.vocab_size]  # [1, V]
        self.tolerance = TOLERANCE[str(logits.dtype).removeprefix("mlx.core.")]
        self._read += 1
        history = None
        if request.sampling.penalised:
            known = self._tokens[: self._read][-request.sampling.history :]
            history = mx.array(known, mx.uint32)
        drawn = Draw(sampler, self._read, history)
        logits = process(logits, [drawn])
        token, bits = self._tokens[self._read], None
        if request.mask is not None:
            bits = request.mask.bits()
            logits = permit(logits, [bits])
        possible = 0 <= token < sampler.vocab_size and allows(bits, token)
        if possible:
            self._check_end(token)
        number = self._read - len(request.tokens)
        return _Place(number, token, drawn, logits, draw(logits, [drawn]), possible)

    def _check_end(self, token: int) -> None:
        """Advance stop matcher and mask past `token`; note a missing or unexpected end."""
        _, stop = truncate_at_stop(self._request, (token,))
        tokens = len(self._answer) - self._left
        if self._left:
            if stop is not None:
                self.wrong_end = Reason("verify.runs_on", {"tokens": tokens})
        elif stop is None and self._finish is FinishReason.STOP:
            self.wrong_end = Reason("verify.no_end", {"tokens": tokens})
        elif self._finish is FinishReason.LENGTH and tokens != self._request.max_tokens:
            self.wrong_end = Reason("verify.cut_off", {"tokens": tokens})

    def _compare(self, place: _Place) -> bool:
        """Compare a computed token. Return whether comparing can continue."""
        chosen = cast(int, place.chosen.item())
        if chosen == place.token:
            return True
        gap = margin(place.logits[0], place.drawn, place.token) if place.possible else inf
        difference = Difference(place.number, place.token, chosen, gap)
        if gap > self.tolerance:
            self.difference = difference
            return False
        self.near_ties.append(difference)
        return True


@dataclass(frozen=True, slots=True)
class _Place:
    """Token `number` of the answer: `token`, the logits [1, V] after its prefix, their choice
    [1].
    """

    number: int
    token: int
    drawn: Draw
    logits: mx.array
    chosen: mx.array
    possible: bool


def margin(logits: mx.array, drawn: Draw, token: int) -> float:
    """Return the smallest change of `logits` [V] that would make `token` the drawn one.

    Every higher-scoring token has to lose its lead, or leave the filters; `token` itself has to be
    within the filters.
    """
    temperature, *_ = drawn.sampler.filters
    logits = logits.astype(mx.float32)
    scores, edges = logits, mx.full(logits.shape, inf)
    if temperature:
        scores = logits + temperature * noise([drawn], logits.size)[0]
        edges = _edges(logits, drawn)
    leads = scores - scores[token]
    ahead = (edges > 0) & (leads > 0)
    needed = mx.where(ahead, mx.minimum(leads, edges), 0.0).max()
    return max(cast(float, needed.item()), -cast(float, edges[token].item()))


def _edges(logits: mx.array, drawn: Draw) -> mx.array:
    """Return the distance of each id from the filters' edge, in logits; below 0: outside. [V] ->
    [V]
    """
    _, top_p, min_p, top_k = drawn.sampler.filters
    exclusion = drawn.exclusion
    order = mx.argsort(-logits)
    ranked = logits[order]
    edges = mx.full(logits.shape, inf)
    if top_k and exclusion is None:
        inside = mx.arange(ranked.size) < top_k
        edges = mx.where(inside, ranked - ranked[top_k], ranked - ranked[top_k - 1])
    if min_p:
        edges = mx.minimum(edges, ranked - ranked[0] - log(min_p))
    if top_p:
        edges = mx.minimum(edges, _nucleus_edges(ranked, top_p))
    if exclusion is not None:
        threshold, spared = exclusion
        loose = mx.zeros(logits.shape)
        if spared:
            loose[list(spared)] = inf
        edges = mx.minimum(
            edges, _exclusion_edges(ranked, edges >= 0, threshold, loose[order], top_k)
        )
    return mx.zeros(logits.shape).at[order].add(edges)


def _exclusion_edges(
    ranked: mx.array, inside: mx.array, threshold: float, loose: mx.array, top_k: int
) -> mx.array:
    """Return the edges of XTC and of later `top_k`. Logits [V] are in descending order.

    `inside`: kept by the other filters. `loose`: inf for ids that XTC spares, else 0. An id joins
    or leaves the excluded ones by crossing the threshold, or the least likely id above.
    """
    chances = mx.softmax(mx.where(inside, ranked, -inf))
    logs, bar = mx.log(chances), log(threshold) if threshold else -inf
    above = chances > threshold
    lowest, second = mx.sort(mx.where(above, logs, inf))[:2]
    below = mx.where(above, -inf, logs).max()
    dropped = logs > lowest
    stays = mx.where(above, mx.minimum(bar - below, second - lowest), lowest - logs)
    freed = mx.where(logs <= second, lowest - bar, inf)
    edges = mx.where(dropped, -mx.minimum(logs - lowest, freed), stays) + loose
    if top_k:
        left = -mx.sort(mx.where(inside & (~dropped | (loose > 0)), -ranked, inf))
        border = mx.where(ranked >= left[top_k - 1], ranked - left[top_k], ranked - left[top_k - 1])
        edges = mx.minimum(edges, border)
    return edges


def _nucleus_edges(ranked: mx.array, top_p: float) -> mx.array:
    """Return the edges of `top_p` alone, for logits [V] in descending order.

    An id is dropped once the mass ranked above reaches `top_p`. Either that mass changes (in
    log-odds), or the id swaps places with the nearest id across the edge.
    """
    chances = mx.softmax(ranked)
    before = mx.clip(mx.cumsum(chances) - chances, 0.0, 1.0)
    room = log(top_p) - log(1 - top_p) - mx.log(before) + mx.log1p(-before)
    inside = before < top_p
    lowest = mx.where(inside, ranked, inf).min()
    following = mx.where(inside, -inf, ranked).max()
    stays = mx.minimum(room, ranked - following)
    return mx.where(inside, stays, mx.maximum(room, ranked - lowest))
