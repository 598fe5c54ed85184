"""Abilities of a model's chat template, found out by rendering tiny conversations.

Templates refuse or silently drop messages: a second system message, two user messages in a row, ids
of another form. A template has an ability if a few conversations render without an error, with all
their texts, in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, TypeAlias

from omlx.errors import BadRequest
from omlx.text.template.process import render_template
from omlx.text.tokens import Tokenizer, per_tokenizer
from omlx.text.tools import Tool, template_tools

Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = Sequence[Message]
Arguments: TypeAlias = Mapping[str, str] | str
Form: TypeAlias = Callable[[Mapping[str, str]], Arguments]


@dataclass(frozen=True, slots=True)
class TemplateAbilities:
    """Conversations that a chat template takes unchanged; by default all."""

    system: bool = True  # a system message at the beginning
    system_alone: bool = True  # a system message and nothing else
    systems: bool = True  # several system messages at the beginning
    late_systems: bool = True  # system messages after the first message of another role
    users: bool = True  # several user messages in a row
    assistants: bool = True  # several assistant messages in a row
    assistant_first: bool = True  # an assistant message before the first user message
    empty_assistants: bool = True  # assistant messages without a text
    objects: bool = True  # arguments of calls as objects
    calls: bool = True  # calls of assistant messages, their arguments as objects or as JSON text
    texts_beside_calls: bool = True  # a text and calls in one assistant message
    texts_beside_reasoning: bool = True  # a text, reasoning and calls in one assistant message
    reasoning_beside_calls: bool = True  # reasoning and calls in one assistant message
    texts: bool = True  # arguments that are any text
    several_calls: bool = True  # several calls of one assistant message
    long_ids: bool = True  # ids of calls other than nine letters and digits
    results: bool = True  # results of tools
    orphans: bool = True  # results without a call
    unanswered: bool = True  # calls without a result
    users_after_results: bool = True  # a user message after a result
    parts_only: bool = False  # contents must be lists of parts even if a single text
    needs_tools: bool = False  # the variable `tools` must be a list even without functions
    tools: bool = True  # functions in the variable `tools`
    tools_alone: bool = True  # functions in conversations without a system message
    schemas: bool = True  # parameters with any number of types, and without descriptions
    definitions: bool = True  # parameters that refer to definitions


def probe(tokenizer: Tokenizer) -> TemplateAbilities:
    """Try the template, with tools and without.

    A template that renders nothing at all keeps every ability: its own error is the most
    informative. Raises BadRequest for a template that exceeds the limits.
    """
    variables: list[Mapping[str, Any]] = [{}, {"tools": [_TOOL]}]
    works = [given for given in variables if _renders(tokenizer, given, _PLAIN)]
    parts_only = not works and _renders(tokenizer, {}, _in_parts(_PLAIN))
    if parts_only:
        works = [{}]
    needs_tools = {} not in works and _renders(tokenizer, {"tools": []}, _PLAIN)
    if needs_tools:
        works.append({"tools": []})
    if not works:
        return TemplateAbilities()

    def renders(*conversations: Conversation) -> bool:
        forms = map(_in_parts, conversations) if parts_only else conversations
        pairs = product(works, forms)
        return all(_renders(tokenizer, given, conversation) for given, conversation in pairs)

    able = {name: renders(*conversations) for name, conversations in _TURNS.items()}
    objects = renders(*_exchanges(dict))
    calls = objects or renders(*_exchanges(json.dumps))
    form: Form = dict if objects else json.dumps
    able |= {name: renders(*conversations) for name, conversations in _calls(form).items()}
    called = _call(form({})) if calls else _assistant(TWO)  # calls are rendered as text
    able |= {name: renders(*conversations) for name, conversations in _results(called).items()}
    return TemplateAbilities(
        **able,
        **_tools(tokenizer, parts_only),
        objects=objects,
        calls=calls,
        parts_only=parts_only,
        needs_tools=needs_tools,
    )


template_abilities: Final = per_tokenizer(probe)


def _tools(tokenizer: Tokenizer, parts_only: bool) -> Mapping[str, bool]:
    """Return abilities about functions: whether the template lists those of each form.

    A template that lists no functions is not tried with further forms.
    """
    (plain,) = template_tools([_ANY], schemas=False)
    (full,) = template_tools([_ANY])
    for alone, conversation in ((True, (_ASK,)), (False, (_system("Help."), _ASK))):
        shown = _in_parts(conversation) if parts_only else conversation
        lists = partial(_lists, tokenizer, shown)
        if lists(plain):
            schemas = lists(full)
            (referring,) = template_tools([_REFERRING], schemas=schemas)
            return {"tools_alone": alone, "schemas": schemas, "definitions": lists(referring)}
    return {"tools": False}


def _lists(tokenizer: Tokenizer, conversation: Conversation, tool: Tool) -> bool:
    rendered = _rendered(tokenizer, {"tools": [tool]}, conversation)
    marked = _MARKED.findall(json.dumps(tool))
    return rendered is not None and all(text in rendered for text in marked)


def _renders(
    tokenizer: Tokenizer, variables: Mapping[str, Any], conversation: Conversation
) -> bool:
    """Whether the template renders all marked texts of the conversation, in order."""
    rendered = _rendered(tokenizer, variables, conversation)
    if rendered is None:
        return False
    places = [rendered.find(text) for text in _texts(conversation)]
    return -1 not in places and places == sorted(places) and _PYTHON not in rendered


def _rendered(
    tokenizer: Tokenizer, variables: Mapping[str, Any], conversation: Conversation
) -> str | None:
    """Return the prompt, None if the template fails. Raises BadRequest beyond the limits."""
    try:
        return render_template(tokenizer, conversation, variables, add_generation_prompt=True)
    except BadRequest:
        raise
    except Exception:  # noqa: BLE001 — of any type: a template is a program
        return None


def _texts(conversation: Conversation) -> list[str]:
    texts = []
    for message in conversation:
        content = message["content"]
        texts.append(message.get("reasoning_content", ""))
        texts += [content] if isinstance(content, str) else [part["text"] for part in content]
        for call in message.get("tool_calls", ()):
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str) and arguments.startswith("{"):
                arguments = json.loads(arguments)  # templates may write its names and values
            if isinstance(arguments, Mapping):
                texts += arguments.values()
            else:
                texts.append(arguments)
    return [text for text in texts if _MARK in text]


def _in_parts(conversation: Conversation) -> Conversation:
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in conversation
    ]


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


_system, _user, _assistant = (partial(_said, role) for role in ("system", "user", "assistant"))


def _call(
    *arguments: Arguments, first_id: str = "a1b2c3d40", text: str = "", reasoning: str = ""
) -> Message:
    calls = []
    for number, argument in enumerate(arguments):
        function = {"name": "look", "arguments": argument}
        # Mistral's templates take no other ids than those of nine letters and digits.
        id = f"{first_id[:-1]}{number}"
        calls.append({"id": id, "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": calls}
    return message | ({"reasoning_content": reasoning} if reasoning else {})


def _result(text: str, id: str = "a1b2c3d40") -> Message:
    return {"role": "tool", "tool_call_id": id, "name": "look", "content": text}


_MARK: Final = "zqx"
_MARKED: Final = re.compile(rf"{_MARK}\d")
ONE, TWO, THREE, FOUR, FIVE, SIX = (f"{_MARK}{number}" for number in range(6))
"""Texts that no template contains."""
_PYTHON: Final = "{'key'"  # beginning of an object written as Python instead of JSON
_ASK: Final = _user(ONE)
_LONG_ID: Final = "call_0123456789abcdef0"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "What to look up."}},
            "required": ["key"],
        },
    },
}
_ANY: Final = {
    "function": {
        "name": ONE,
        "parameters": {
            "type": "object",
            "properties": {
                TWO: {"type": "string"},
                "any": {},
                "none": {"type": "null"},
                "maybe": {"type": ["string", "null"]},
                "either": {"type": ["string", "integer"]},
                "union": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "list": {"type": "array"},
                "lists": {"type": "array", "items": {"type": "array", "items": {}}},
                "deep": {"type": "object", "properties": {"key": {"enum": ["a", 1, None]}}},
                "map": {"type": "object", "additionalProperties": False},
                "fixed": {"const": 1},
                "never": {"not": {}},
            },
        },
    }
}
"""Function with parameters of every form."""
_REFERRING: Final = {
    "function": {
        "name": ONE,
        "parameters": {
            "properties": {"key": {"$ref": "#/$defs/Key"}},
            "$defs": {"Key": {"type": "object", "properties": {TWO: {"type": "string"}}}},
        },
    }
}
_PLAIN: Final = (_ASK, _assistant(TWO), _user(THREE))

_TURNS: Final[Mapping[str, Sequence[Conversation]]] = {
    "system": [(_system(ONE), _user(TWO))],
    "system_alone": [(_system(ONE),)],
    "systems": [(_system(ONE), _system(TWO), _user(THREE))],
    "late_systems": [
        (_ASK, _system(TWO)),
        (_ASK, _system(TWO), _assistant(THREE), _user(FOUR)),
        (_ASK, _assistant(TWO), _system(THREE), _user(FOUR)),
    ],
    "users": [(_ASK, _user(TWO)), (_ASK, _user(TWO), _assistant(THREE), _user(FOUR))],
    "assistants": [
        (_ASK, _assistant(TWO), _assistant(THREE)),
        (_ASK, _assistant(TWO), _assistant(THREE), _user(FOUR)),
    ],
    "assistant_first": [(_assistant(ONE), _user(TWO))],
    "empty_assistants": [(_ASK, _assistant(""), _user(TWO))],
}
"""Conversations without calls that a template with the ability renders, by ability."""


def _exchanges(form: Form) -> Sequence[Conversation]:
    arguments = form({"key": TWO})
    return [
        (_ASK, _call(arguments), _result(THREE)),
        (_ASK, _call(arguments, text="Looking."), _result(THREE)),
    ]


def _calls(form: Form) -> Mapping[str, Sequence[Conversation]]:
    two = _call(form({"key": TWO}), form({"key": THREE}))
    long_id = _call(form({"key": TWO}), first_id=_LONG_ID)
    said, thought = _call(form({}), text=TWO), _call(form({}), reasoning=TWO)
    both = {**said, "reasoning_content": "Thinking."}
    return {
        "texts_beside_calls": [
            (_ASK, said, _result("yes")),
            (_ASK, said, _result("yes"), _assistant(THREE), _user(FOUR)),
        ],
        "texts_beside_reasoning": [(_ASK, both, _result("yes"))],
        "reasoning_beside_calls": [(_ASK, thought, _result("yes"))],
        "texts": [(_ASK, _call(TWO), _result(THREE))],
        "several_calls": [(_ASK, two, _result(FOUR), _result(FIVE, "a1b2c3d41"))],
        "long_ids": [(_ASK, long_id, _result(THREE, _LONG_ID))],
    }


def _results(called: Message) -> Mapping[str, Sequence[Conversation]]:
    answered = (_ASK, called, _result(THREE))
    return {
        "results": [answered],
        "orphans": [
            (_ASK, _result(TWO), _assistant(THREE), _user(FOUR)),
            (_ASK, _assistant(TWO), _result(THREE), _user(FOUR)),
        ],
        "unanswered": [(_ASK, called, _user(THREE))],
        "users_after_results": [
            (*answered, _user(FOUR)),
            (*answered, _user(FOUR), _assistant(FIVE), _user(SIX)),
        ],
    }
