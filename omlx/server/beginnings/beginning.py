"""What conversations of one program have in common: system messages, tools, template variables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from omlx.server.request.generation_request import GenerationRequest
from omlx.text.template.render import render
from omlx.text.tools import ToolUse

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

MIN_CHARACTERS: Final = 2_000
"""Some 500 tokens; what is shorter is computed at once."""

MAX_CHARACTERS: Final = 1 << 20

_FIRST_WORDS: Final = ("A", "a", "0", "<", "\n", " -", "我")
"""How a user's message may begin: what the prompts with them share is before that message, and no
token of it depends on the next character.
"""


@dataclass(frozen=True)
class Beginning:
    """`messages` are system messages, `tools` as chat templates take them.

    Stored as text: after an update of the model its tokens may be others.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    variables: Mapping[str, Any]

    @cached_property
    def text(self) -> str:
        """Its JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    @cached_property
    def key(self) -> str:
        return sha256(self.text.encode(errors="surrogatepass")).hexdigest()

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Beginning:
        """Read what `text` holds. Raises KeyError or TypeError for anything else."""
        messages, tools = record["messages"], record["tools"]
        return cls(tuple(map(dict, messages)), tuple(map(dict, tools)), dict(record["variables"]))

    def tokens(self, tokenizer: TokenizerWrapper, context_length: int) -> tuple[int, ...]:
        """Return the tokens with which each conversation begins. Raises BadRequest.

        The template may put tools elsewhere, or want a message of the user: so some conversations
        are rendered, and compared.
        """
        tools = ToolUse(self.tools) if self.tools else None
        prompts = []
        for word in _FIRST_WORDS:
            messages = [*self.messages, {"role": "user", "content": word}]
            prompt = render(
                tokenizer, messages, self.variables, tools=tools, context_length=context_length
            )
            prompts.append(prompt.tokens)
        return _shared(prompts)


def beginning_of(request: GenerationRequest) -> Beginning | None:
    """Return the beginning of a conversation; None if it is too short or too long to be stored, or
    shows images.
    """
    system = tuple(takewhile(lambda message: message["role"] == "system", request.messages))
    if not all(isinstance(message["content"], str) for message in system):
        return None
    tools = () if request.tools is None else request.tools.functions
    beginning = Beginning(system, tools, request.template_variables)
    if not MIN_CHARACTERS <= len(beginning.text) <= MAX_CHARACTERS:
        return None
    return beginning


def is_new(request: GenerationRequest) -> bool:
    """Whether a conversation has no answer yet."""
    return all(message["role"] in ("system", "user") for message in request.messages)


def _shared(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the longest common prefix."""
    columns = takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))
    return tuple(ids[0] for ids in columns)
