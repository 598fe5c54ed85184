"""The text of a prompt, for the list of requests where the setting `record_prompts` allows it."""

from __future__ import annotations

from typing import Final

from omlx.server.request.generation_request import GenerationRequest
from omlx.text.template.render import texts_of

MAX_CHARACTERS: Final = 4000


def prompt_text(request: GenerationRequest) -> str:
    """Return the end of all messages or prompts, at most `MAX_CHARACTERS`. Token ids have no
    text."""
    parts = [text for text in request.prompts if isinstance(text, str)]
    for message in request.messages:
        content = "\n".join(texts_of(message.get("content")))
        parts.append(f"{message['role']}: {content}")
    return "\n\n".join(parts)[-MAX_CHARACTERS:]
