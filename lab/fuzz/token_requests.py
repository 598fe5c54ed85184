"""Random seeded requests whose answers must not depend on how they are computed: sampling,
penalties, biases, grammars, tools, several choices, drafts of every kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

Json = dict[str, Any]

WORDS: Final = (
    "rain the cat reads a table of 42 numbers and def walk(self): return self.path + 1 then "
    'writes {"name": "Ada", "tags": ["x", "y"]} in a file which the other cat reads again'
).split()

SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["cat", "dog", "other"]},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}

TOOL: Final = {
    "type": "function",
    "function": {"name": "look", "parameters": SCHEMA, "strict": True},
}

GRAMMARS: Final[tuple[Json, ...]] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"response_format": {"type": "json_object"}},
    {"guided_regex": "[a-z]{3,9}( [0-9]{1,4}){2,6}"},
    {"guided_choice": ["rain", "rain and wind", "sun"]},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": "auto"},
)

STRATEGIES: Final = ("auto", "ngram", "draft", "draft", "ngram;draft", "ngram:n=3,m=24;draft:m=5")


@dataclass(frozen=True)
class TokenRequest:
    """A request as the reference answers it, and what is added where it is compared."""

    path: str
    body: Json
    speculation: Json

    def compared(self) -> Json:
        return {**self.body, **self.speculation}

    def reference(self) -> Json:
        return {**self.body, "speculation": "off"}

    def drafted_by(self, kind: str) -> TokenRequest:
        """Return the request with a drafter of this kind in place of the draft model."""
        strategy = self.speculation["speculation"].replace("draft", kind)
        return replace(self, speculation={**self.speculation, "speculation": strategy})


def token_request(rng: Random, model: str, seeds: int, earlier: list[Json]) -> TokenRequest:
    """Draw one request; `seeds` is the number of distinct beginnings that prompts share. `earlier`
    are the messages of the conversation that it continues, or none.
    """
    body: Json = {"model": model, "seed": rng.getrandbits(32), "max_tokens": _length(rng)}
    _sampling(rng, body)
    words = _words(rng, seeds)
    text = " ".join(words)
    if not earlier and rng.random() < 0.3:
        path = "/v1/completions"
        body |= {"prompt": text}
        if rng.random() < 0.7:
            body |= {"logprobs": 0}
        if rng.random() < 0.2:
            body |= dict(rng.choice(GRAMMARS[:4]))
    else:
        path = "/v1/chat/completions"
        messages = _conversation(rng, words)
        if earlier:
            messages = [*earlier, {"role": "user", "content": " ".join(words[-6:])}]
        body |= {"messages": messages}
        if rng.random() < 0.3:
            body |= dict(rng.choice(GRAMMARS))
        if rng.random() < 0.7:
            body |= {"logprobs": True, "top_logprobs": rng.choice((0, 0, 5))}
        if rng.random() < 0.2:
            body |= {"prediction": {"type": "content", "content": " ".join(words[-40:])}}
    return TokenRequest(path, body, _speculation(rng))


def _length(rng: Random) -> int:
    return rng.choice((1, 2, 7, 16, 33, 64, 120))


def _words(rng: Random, seeds: int) -> list[str]:
    """Words of a shared beginning, cut anywhere, and a few of its own."""
    shared = Random(rng.randrange(seeds))
    beginning = shared.choices(WORDS, k=160)[: rng.randint(1, 160)]
    return beginning + rng.choices(WORDS, k=rng.randint(0, 12))


def _conversation(rng: Random, words: list[str]) -> list[Json]:
    if len(words) < 8 or rng.random() < 0.5:
        return [{"role": "user", "content": " ".join(words)}]
    first, second = len(words) // 3, 2 * len(words) // 3
    return [
        {"role": "user", "content": " ".join(words[:first])},
        {"role": "assistant", "content": " ".join(words[first:second])},
        {"role": "user", "content": " ".join(words[second:])},
    ]


def _sampling(rng: Random, body: Json) -> None:
    body["temperature"] = rng.choice((0, 0, 0.3, 0.8, 1.0, 1.5, 2.0))
    optional: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("top_p", (0.5, 0.9, 1.0)),
        ("top_k", (1, 5, 40)),
        ("min_p", (0.02, 0.2)),
        ("repetition_penalty", (0.9, 1.1, 1.4)),
        ("presence_penalty", (-1.0, 0.5, 2.0)),
        ("frequency_penalty", (-0.5, 0.4, 2.0)),
        ("n", (2, 3, 4)),
        ("stop", (["the"], ["cat", "\n"], ["0"])),
    )
    for name, values in optional:
        if rng.random() < 0.2:
            body[name] = rng.choice(values)
    if rng.random() < 0.2:
        ids = rng.sample(range(300, 2000), 6)
        body["logit_bias"] = {str(token): rng.choice((-100, -5, 3, 8)) for token in ids}


def _speculation(rng: Random) -> Json:
    chosen: Json = {"speculation": rng.choice(STRATEGIES)}
    width = rng.choice((None, 1, 3, 5, 16, 33))
    if width is not None:
        chosen["num_draft_tokens"] = width
    elif rng.random() < 0.4:
        chosen |= rng.choice(({"draft_min": 1, "draft_max": 2}, {"draft_min": 5, "draft_max": 16}))
    return chosen
