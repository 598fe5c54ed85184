"""The example request that `omlx serve` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from omlx.catalog import sentence
from omlx.clients.endpoint import Endpoint
from omlx.clients.snippets import Snippet, curl, embeddings_curl, rerank_curl
from omlx.models.catalog.facts import ModelFacts, ModelFactsCache
from omlx.models.catalog.registry import BUNDLED, ModelEntry

_Command: TypeAlias = Callable[..., Snippet]


def example(models: Sequence[ModelEntry], address: str, *, with_key: bool) -> list[str]:
    """Return a request to the first model that chats, else to the first one that embeds or ranks.

    Reads files of the models; empty if there is none.
    """
    facts = ModelFactsCache()
    first: dict[_Command, ModelEntry] = {}
    for entry in models:
        command = _command(facts.get(entry))
        if command is not None:
            first.setdefault(command, entry)
        if command is curl:
            break
    if not first:
        return []
    command = curl if curl in first else next(iter(first))
    entry = first[command]
    endpoint = Endpoint(address, entry.id, with_key=with_key)
    # The bundled models know no facts.
    prompt = "cli.serve.prompt" if entry.source == BUNDLED else "cli.serve.question"
    # The likeliest answer: a small model that samples says something else half of the time.
    fields = {"temperature": 0} if command is curl else {}
    text = command(endpoint, sentence(prompt, {}), **fields).text
    return [sentence("cli.serve.try", {}), f"  {text}"]


def _command(facts: ModelFacts) -> _Command | None:
    if facts.embeddings:
        return embeddings_curl
    if facts.reranks:
        return rerank_curl
    return curl if facts.generates else None
