"""Rewriting of conversations for templates that do not support them.

Supported messages are unchanged. The rewriting of a message depends on the messages before it and
on the results right after its calls, never on later turns: cached prefixes of a conversation stay
valid turn after turn.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

from omlx.errors import Reason
from omlx.text.template.abilities import Message, TemplateAbilities

Content: TypeAlias = str | list[dict[str, Any]]
"""Content of a message: a text, or parts, which are texts and images in their order."""
Messages: TypeAlias = list[dict[str, Any]]
WriteCalls: TypeAlias = Callable[[Sequence[Message]], str]

IMAGE_LEFT_OUT: Final = "[image: left out, the chat template has no place for it]"
BETWEEN: Final = "\n\n"
"""Separator of the texts of joined messages."""
_SHORT_ID: Final = re.compile("[a-zA-Z0-9]{9}")
_ID_LETTERS: Final = string.ascii_letters + string.digits


def adapt(
    messages: Sequence[Message],
    abilities: TemplateAbilities,
    write_calls: WriteCalls,
    *,
    continue_last: bool = False,
) -> tuple[Messages, tuple[Reason, ...]]:
    """Return the messages in a form that the template takes, and the kinds of changes.

    `write_calls` writes calls as the text that the model would generate. The last message stays the
    last with `continue_last`. Modifies nothing.
    """
    rewriting = _Rewriting(abilities, write_calls)
    adapted = rewriting.calls(messages)
    adapted = rewriting.results(adapted)
    adapted = rewriting.systems(adapted)
    if not abilities.empty_assistants:
        adapted = rewriting.without_empty(adapted, continue_last)
    adapted = rewriting.neighbours(adapted)
    adapted = rewriting.first_user(adapted)
    adapted = rewriting.texts_beside_calls(adapted)
    if abilities.parts_only:
        adapted = [message | {"content": _parts(message["content"])} for message in adapted]
    return adapted, tuple(Reason(code) for code in rewriting.changes)


class _Rewriting:
    """Steps of the rewriting; each returns rewritten messages.

    `changes` holds a code for every kind of change, in order.
    """

    def __init__(self, abilities: TemplateAbilities, write_calls: WriteCalls) -> None:
        self._can = abilities
        self._write_calls = write_calls
        self.changes: dict[str, None] = {}

    def calls(self, messages: Iterable[Message]) -> Messages:
        rewritten = []
        for message in map(dict, messages):
            calls = message.get("tool_calls")
            if calls and self._can.calls:
                message["tool_calls"] = [self._call(call) for call in calls]
            elif calls:
                self._note("conversation.tools_as_text")
                del message["tool_calls"]
                message["content"] = _texts((message["content"], self._write_calls(calls)))
            elif "tool_call_id" in message:
                message["tool_call_id"] = self._id(message["tool_call_id"])
            rewritten.append(message)
        return rewritten

    def results(self, messages: Messages) -> Messages:
        """Move results behind their calls; turn unsupported results into user messages."""
        rewritten: Messages = []
        # A user's text cannot be moved into a result that is no part of an exchange.
        orphans = self._can.orphans and self._can.users_after_results
        at = 0
        while at < len(messages):
            message = messages[at]
            end = at + 1
            if message.get("tool_calls"):
                while end < len(messages) and messages[end]["role"] == "tool":
                    end += 1
                results = messages[at + 1 : end]
                rewritten += self._exchange(message, results, is_last=end == len(messages))
            elif message["role"] == "tool" and self._can.calls and not orphans:
                rewritten.append(self._as_user(message))
            else:
                rewritten.append(message)
            at = end
        if self._can.results:
            return rewritten
        return [self._as_user(each) if each["role"] == "tool" else each for each in rewritten]

    def systems(self, messages: Messages) -> Messages:
        """Keep system messages at the beginning, one if the template takes no more.

        The others become parts of the user messages beside them.
        """
        groups: list[Messages] = []
        begins, moved = self._can.system, False
        for message in messages:
            is_system = message["role"] == "system"
            begins = begins and is_system
            if begins:
                join = bool(groups) and not self._can.systems
                if join:
                    self._note("conversation.joined")
            else:
                beside_moved = moved
                moved = is_system and not (self._can.late_systems and self._can.system)
                if moved:
                    self._note("conversation.system_moved")
                    message = {"role": "user", "content": message["content"]}
                joins = message["role"] == "user" and (moved or beside_moved)
                join = joins and bool(groups) and groups[-1][0]["role"] == "user"
            _add(groups, message, join=join)
        return [_joined(group) for group in groups]

    def without_empty(self, messages: Messages, continue_last: bool) -> Messages:
        rewritten = []
        for at, message in enumerate(messages):
            is_empty = message["role"] == "assistant" and not (
                message["content"] or message.get("tool_calls")
            )
            if is_empty and not (continue_last and at == len(messages) - 1):
                self._note("conversation.dropped")
            else:
                rewritten.append(message)
        return rewritten

    def neighbours(self, messages: Messages) -> Messages:
        """Join messages of the same role; append a user's text after a result to the result."""
        joins = {"user": not self._can.users, "assistant": not self._can.assistants}
        groups: list[Messages] = []
        for message in messages:
            role = message["role"]
            before = groups[-1][0]["role"] if groups else None
            join = role == before and joins.get(role, False)
            if join:
                self._note("conversation.joined")
            elif role == "user" and before == "tool" and not self._can.users_after_results:
                self._note("conversation.user_in_result")
                message = self._without_images(message)
                join = True
            _add(groups, message, join=join)
        return [_joined(group) for group in groups]

    def first_user(self, messages: Messages) -> Messages:
        roles = [message["role"] for message in messages]
        systems = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
        needed = not self._can.system_alone and "user" not in roles
        if not self._can.assistant_first:
            needed = needed or roles[systems : systems + 1] != ["user"]
        if not needed:
            return messages
        self._note("conversation.added")
        return [*messages[:systems], {"role": "user", "content": ""}, *messages[systems:]]

    def texts_beside_calls(self, messages: Messages) -> Messages:
        """Move texts next to calls into reasoning, if the template cannot take both."""
        rewritten = []
        for message in messages:
            text, reasoning = message["content"], message.get("reasoning_content")
            takes = self._can.texts_beside_reasoning if reasoning else self._can.texts_beside_calls
            if text and message.get("tool_calls") and not takes:
                message = message | {"content": ""}
                if self._can.reasoning_beside_calls:
                    message["reasoning_content"] = _texts((reasoning, text))
                    self._note("conversation.text_in_reasoning")
                else:
                    self._note("conversation.text_left_out")
            rewritten.append(message)
        return rewritten

    def _exchange(self, message: dict[str, Any], results: Messages, *, is_last: bool) -> Messages:
        calls = message["tool_calls"]
        answered = {result["tool_call_id"] for result in results}
        missing = [call for call in calls if call["id"] not in answered]
        if missing and not (is_last or self._can.unanswered):
            self._note("conversation.added")
            results = [*results, *map(_no_result, missing)]
        if len(calls) == 1 or self._can.several_calls:
            return [message, *results]
        self._note("conversation.calls_split")
        by_id: dict[str, Messages] = {}
        for result in results:
            by_id.setdefault(result["tool_call_id"], []).append(result)
        rewritten: Messages = []
        for call in calls:
            rewritten += [message | {"tool_calls": [call]}, *by_id.pop(call["id"], ())]
            message = {"role": "assistant", "content": ""}
        return [*rewritten, *chain.from_iterable(by_id.values())]

    def _call(self, call: Message) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        if isinstance(arguments, Mapping) and not self._can.objects:
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif isinstance(arguments, str) and not self._can.texts:
            self._note("conversation.arguments")
            arguments = {"arguments": arguments}
        function = {**call["function"], "arguments": arguments}
        return {**call, "id": self._id(call["id"]), "function": function}

    def _id(self, id: str) -> str:
        """Derive the same short id for a call and its result."""
        if self._can.long_ids or not self._can.calls or _SHORT_ID.fullmatch(id):
            return id
        self._note("conversation.ids")
        number = int.from_bytes(hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest())
        letters = []
        for _ in range(9):
            number, letter = divmod(number, len(_ID_LETTERS))
            letters.append(_ID_LETTERS[letter])
        return "".join(letters)

    def _as_user(self, result: Message) -> dict[str, Any]:
        self._note("conversation.tools_as_text")
        return {"role": "user", "content": result["content"]}

    def _without_images(self, message: dict[str, Any]) -> dict[str, Any]:
        # Templates do not show images in results.
        if isinstance(message["content"], str):
            return message
        self._note("conversation.image_left_out")
        texts = [part.get("text", IMAGE_LEFT_OUT) for part in message["content"]]
        return message | {"content": "".join(texts)}

    def _note(self, code: str) -> None:
        self.changes[code] = None


def _add(groups: list[Messages], message: dict[str, Any], *, join: bool) -> None:
    if join:
        groups[-1].append(message)
    else:
        groups.append([message])


def _joined(group: Messages) -> dict[str, Any]:
    first = group[0]
    if len(group) == 1:
        return first
    joined = first | {"content": _contents([message["content"] for message in group])}
    reasoning = _texts(message.get("reasoning_content") for message in group)
    calls = [*chain.from_iterable(message.get("tool_calls", ()) for message in group)]
    if reasoning:
        joined["reasoning_content"] = reasoning
    if calls:
        joined["tool_calls"] = calls
    return joined


def _contents(contents: Sequence[Content]) -> Content:
    parts: list[dict[str, Any]] = []
    for content in contents:
        new = _parts(content)
        if parts and new and parts[-1]["type"] == new[0]["type"] == "text":
            text = _texts((parts.pop()["text"], new[0]["text"]))
            new = [{"type": "text", "text": text}, *new[1:]]
        parts += new
    if any(isinstance(content, list) for content in contents):
        return parts
    return "".join(part["text"] for part in parts)


def _parts(content: Content | None) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _texts(texts: Iterable[str | None]) -> str:
    return BETWEEN.join(text for text in texts if text)


def _no_result(call: Message) -> dict[str, Any]:
    return {
        "role": "tool",
        "tool_call_id": call["id"],
        "name": call["function"]["name"],
        "content": "",
    }
