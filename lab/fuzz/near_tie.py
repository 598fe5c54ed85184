"""Whether two answers to one request part at a near-tie, which rounding may decide.

A token is the argmax of logprob / temperature + noise, whose noise depends on seed, choice and
position alone: both scores can be computed from the logprobs that the answers carry.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx

from omlx.engine.device.sampling import noise_key

Json = dict[str, Any]

TOLERANCE: Final = 1e-4
"""Largest gap between two scores that rounding may decide; they are of the order of 1 to 10."""


def near_tie(body: Json, expected: Json, got: Json, ids: dict[str, list[int]], width: int) -> bool:
    """Return whether the tokens of two responses to `body` differ, and part at near-ties only.

    `ids` are token ids by text, `width` the number of ids.
    """
    prompt = expected["usage"]["prompt_tokens"]
    parted = False
    for choice, (one, other) in enumerate(zip(_in_order(expected), _in_order(got), strict=True)):
        for number, (first, second) in enumerate(zip(one, other, strict=False)):
            if first[0] == second[0]:
                continue
            key = noise_key(body["seed"], choice, prompt + number)
            noise = mx.random.gumbel((width,), key=mx.array(key, mx.uint32)).tolist()
            temperature = body["temperature"]
            scores = [
                _scores(logprob, ids.get(text, []), noise, temperature)
                for text, logprob in (first, second)
            ]
            gaps = [abs(a - b) for a in scores[0] for b in scores[1]]
            if min(gaps, default=1.0) > TOLERANCE:
                return False
            parted = True
            break
    return parted


def _scores(logprob: float, ids: list[int], noise: list[float], temperature: float) -> list[float]:
    if temperature == 0:
        return [logprob]
    return [logprob / temperature + noise[token] for token in ids]


def _in_order(response: Json) -> list[list[tuple[str, float]]]:
    """The sampled tokens of every choice, each with its logprob; none where not asked for."""
    answers: list[list[tuple[str, float]]] = []
    for choice in sorted(response["choices"], key=lambda choice: int(choice["index"])):
        logprobs = choice.get("logprobs") or {}
        if "content" in logprobs:
            tokens = logprobs["content"] or []
            answers.append([(token["token"], token["logprob"]) for token in tokens])
        else:
            pairs = zip(logprobs.get("tokens", ()), logprobs.get("token_logprobs", ()), strict=True)
            answers.append([*pairs])
    return answers
