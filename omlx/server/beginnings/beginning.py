"""Beginnings of prompts: system messages, tools and template variables of conversations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, reduce
from hashlib import sha256
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from omlx.engine.prefix.tree import shared_length
from omlx.server.request.content import without_attribution
from omlx.server.request.generation_request import GenerationRequest
from omlx.text.template.render import render
from omlx.text.tools import ToolUse

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

MIN_CHARACTERS: Final = 2_000
"""Characters, some 500 tokens — shorter beginnings are computed in no time."""

MAX_CHARACTERS: Final = 1 << 20

MAX_AGE_S: Final = 30 * 86400.0
"""Seconds without use until what was learnt from prompts is forgotten."""

FIRST_WORDS: Final = ("A", "a", "0", "<", "\n", " -", "我")
"""First words of user messages — no token of the prompts' common prefix depends on the next
character.
"""


_PLACE: Final = re.compile(
    r"(?:directory|folder|cwd|workspace|worktree|project)\b"
    r"[^\n]{0,24}?(?<![\w.])((?:[A-Za-z]:)?[/\\~][^\s<>\"'`,;]*)",
    re.IGNORECASE,
)
"""A label and a path."""


@dataclass(frozen=True)
class Beginning:
    """System `messages` and `tools` of a prompt, in the form of chat templates.

    Stored as text, not tokens: an update of the model may change the tokens.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    variables: Mapping[str, Any]

    @cached_property
    def text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    @cached_property
    def key(self) -> str:
        return sha256(self.text.encode(errors="surrogatepass")).hexdigest()

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Beginning:
        """Parse the JSON object of `text`. Raises KeyError or TypeError for anything else."""
        messages, tools = record["messages"], record["tools"]
        return cls(tuple(map(dict, messages)), tuple(map(dict, tools)), dict(record["variables"]))

    @cached_property
    def system(self) -> str:
        """Text of all system messages."""
        return "".join(str(message["content"]) for message in self.messages)

    def tokens(self, tokenizer: TokenizerWrapper, context_length: int) -> tuple[int, ...]:
        """Return the tokens shared by all conversations with this beginning. Raises BadRequest.

        Templates may put tools elsewhere or require a user message, so several conversations are
        rendered and compared.
        """
        endings = [(*self.messages, {"role": "user", "content": word}) for word in FIRST_WORDS]
        return self._shared(tokenizer, context_length, endings)

    def tokens_before(
        self, at: int, tokenizer: TokenizerWrapper, context_length: int
    ) -> tuple[int, ...]:
        """Return the tokens independent of `system` from character `at` on. Raises BadRequest."""
        before, left = [], at
        for message in self.messages:
            text = str(message["content"])
            if left <= len(text):
                break
            before.append(message)
            left -= len(text)
        user = {"role": "user", "content": "A"}
        cut = [{**message, "content": text[:left] + word} for word in FIRST_WORDS]
        endings = [(*before, message, user) for message in cut]
        return self._shared(tokenizer, context_length, endings)

    def _shared(
        self,
        tokenizer: TokenizerWrapper,
        context_length: int,
        conversations: Sequence[Sequence[Mapping[str, Any]]],
    ) -> tuple[int, ...]:
        """Return the tokens with which the prompts of all conversations begin."""
        tools = ToolUse(self.tools) if self.tools else None
        prompts = (
            render(tokenizer, messages, self.variables, tools=tools, context_length=context_length)
            for messages in conversations
        )
        return shared_prefix(prompt.tokens for prompt in prompts)


def beginning_of(request: GenerationRequest) -> Beginning | None:
    """Return the beginning of a conversation; None if too short, too long or with images."""
    system = tuple(takewhile(lambda message: message["role"] == "system", request.messages))
    if not all(isinstance(message["content"], str) for message in system):
        return None
    system = tuple(without_attribution(system))
    tools = () if request.tools is None else request.tools.functions
    beginning = Beginning(system, tools, request.template_variables)
    if not MIN_CHARACTERS <= len(beginning.text) <= MAX_CHARACTERS:
        return None
    return beginning


def place_of(text: str) -> str:
    """Return the working directory stated by a system message; empty if none."""
    found = _PLACE.search(text)
    return "" if found is None else found[1]


def is_new(request: GenerationRequest) -> bool:
    """Whether a conversation has no answer yet."""
    return all(message["role"] in ("system", "user") for message in request.messages)


def shared_prefix(prompts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the longest common prefix of one prompt or several."""
    return reduce(lambda shared, each: shared[: shared_length(shared, each)], prompts)
