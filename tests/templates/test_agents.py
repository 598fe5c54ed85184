"""First and later requests of coding agents, as recorded, through real chat templates: none is
refused, no text is lost.

The texts are shortened; the forms are those of the programs that `tests/agents` runs.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import pytest

from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.request.generation_request import GenerationRequest
from omlx.text.calls.markup import call_format
from omlx.text.template.render import render
from tests.agents.recordings import AGENTS, recorded
from tests.lanes import few
from tests.templates.fetched import TEMPLATES, tokenizer

LATE_SYSTEM: Final = "mistralai-Mistral-Nemo-Instruct-2407"
"""Renders the system message with a user message at the end only."""


def parse(sent: dict[str, Any]) -> GenerationRequest:
    body = json.dumps(sent["body"]).encode()
    match sent["path"]:
        case "/v1/messages":
            return MessageRequest.parse(body).generation_request()
        case "/v1/responses":
            request = ResponseRequest.parse(body)
            return request.generation_request(request.conversation(()))
        case _:
            return ChatRequest.parse(body).generation_request()


@cache
def requests() -> list[GenerationRequest]:
    return [parse(recorded(agent, behind)) for agent in AGENTS for behind in ("", "loop")]


def shows(prompt: str, text: str) -> bool:
    """Whether a prompt holds every line of a text, as it stands or within JSON."""
    lines = [line.strip() for line in text.splitlines()]
    return all(line in prompt or json.dumps(line)[1:-1] in prompt for line in lines)


@pytest.mark.parametrize("name", few(TEMPLATES, every=4))
def test_every_request_is_rendered_in_full(name: str) -> None:
    loaded = tokenizer(name)
    has_tools = call_format(loaded) is not None
    for request in requests():
        tools = request.tools if has_tools else None
        prompt = render(loaded, request.messages, request.template_variables, tools=tools)
        rendered = loaded.decode(prompt.tokens)
        texts = [
            message["content"]
            for message in request.messages
            if not (message["role"] == "system" and name == LATE_SYSTEM)
        ]
        assert [text for text in texts if not shows(rendered, text)] == []
