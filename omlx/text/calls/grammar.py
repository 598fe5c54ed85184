"""Grammars of tool calls in llguidance's dialect of Lark.

A call is the markup of the model's family around a function's name and arguments that follow its
schema. Markup that is one token of the tokenizer must be generated as this token, not as text of
the same spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from omlx.errors import BadRequest
from omlx.text.calls.arguments import ANY_OBJECT, LENIENT, SPACING, Notation
from omlx.text.calls.format import Messages
from omlx.text.calls.markup import CallMarkup
from omlx.text.schema import Schema
from omlx.text.schema_limits import check_depth, check_integers, prune_nonterminating
from omlx.text.tools import ToolUse

_PLACES: Final = re.compile(r"(\{name\}|\{number\}|\{id\}|\{arguments\})")


class CallGrammar:
    """Grammars of a request's calls, by the markup of a model's family.

    `added` maps the tokenizer's added tokens, which are no compositions of smaller tokens, to ids.
    `unenforced` collects parts of schemas that are not enforced, of functions without `strict`.

    Methods raise BadRequest for a function whose arguments cannot be an object, and for
    unenforceable parts of a strict function's schema.
    """

    def __init__(self, markup: CallMarkup, use: ToolUse, added: Mapping[str, int]) -> None:
        self.unenforced: list[str] = []
        self._form = markup.form
        self._use = use
        self._notation = Notation(added, self.unenforced.append)
        self._literal = self._notation.literal

    def forced(self) -> str:
        """Return the grammar of an answer of one or more calls to the allowed functions.

        Exactly one call if the request allows no more.
        """
        form = self._form
        if form.messages is not None:
            return "\n".join(["start: call", *self._calls(form.messages.calls)])
        several = marker = ""
        if not (self._use.single or form.together):
            between = f"({self._literal(form.between)})? " if form.between else ""
            several = f" ({between}one)*"
        if form.marked:
            marker = form.start
        first = f"one: {self._literal(marker)} inside"
        return "\n".join([f"start: one{several}", first, *self._inside()])

    def inside(self) -> str:
        return "\n".join(["start: inside", *self._inside()])

    def answer(self) -> str | None:
        """Return the grammar of a whole answer if a call may occur without a marker.

        Also for calls in messages of their own; None in families where a marker begins every call.
        """
        if self._form.messages is not None:
            return "\n".join(self._messages(self._form.messages))
        if self._form.marked or self._use.forced:
            return None
        return "\n".join(self._prose())

    def _prose(self) -> Iterator[str]:
        """Yield the rules for an answer of an unmarked call, or prose.

        In prose a call may follow the marker.
        """
        start, begins = self._form.start, _slashed(self._form.begins)
        prose = f"/(?s:.+)/ & ~/(?s:{begins}.*)/"
        if start in self._notation.added:
            yield f"start: inside | PROSE | PROSE? {self._literal(start)} inside"
        else:
            marker = _slashed(re.escape(start))
            yield "start: inside | PROSE | marked inside"
            yield "marked[lazy]: MARKED"
            yield f"MARKED: /(?s:.*){marker}/ & ~/(?s:{begins}.*)/"
            prose += f" & ~/(?s:.*){marker}(?s:.*)/"
        yield f"PROSE: {prose}"
        yield from self._inside()

    def _messages(self, messages: Messages) -> Iterator[str]:
        """Yield the rules for all messages of an answer.

        A forced call follows reasoning at most; else texts may precede the call, and an answer may
        replace both.
        """
        thought, preamble, answer = map(
            self._literal, (messages.thought, messages.preamble, messages.answer)
        )
        markup = f"(?s:.*){messages.markers}(?s:.*)"
        if self._use.forced:
            yield f"start: ({thought} said)? call"
        else:
            yield f"start: (({thought} | {preamble}) said)* (call | {answer} ANSWER?)"
            yield answer_text(messages)
        yield from self._notation.texts(messages.between, "said", [markup])
        yield from self._calls(messages.calls)

    def _inside(self) -> Iterator[str]:
        form = self._form
        assert form.written is not None
        several = ""
        if form.together and not self._use.single:
            several = f" ({self._literal(form.separator)} call)*"
        before, behind = form.section
        ends = self._literal(behind + (form.end if form.messages is None else ""))
        yield f"inside: {self._literal(before)} call{several} {ends}"
        yield from self._calls((form.written,))
        if form.syntax.ender:
            yield from self._notation.texts(form.syntax.ender)

    def _calls(self, written: Sequence[str]) -> Iterator[str]:
        yield "call: " + " | ".join(f"call_{i}" for i in range(len(self._use.allowed)))
        for i, function in enumerate(self._use.allowed):
            texts = (self._call(text, function["name"], f"arguments_{i}") for text in written)
            yield f"call_{i}: {' | '.join(texts)}"
            yield from self._arguments(function, f"arguments_{i}")

    def _call(self, written: str, name: str, rule: str) -> str:
        pattern = f"/{self._form.id_pattern}/"
        places = {"{number}": "/[0-9]{1,3}/", "{id}": pattern, "{arguments}": rule}
        terms, text = [], ""
        for part in _PLACES.split(written):
            if part in places:
                terms += [self._literal(text), places[part]]
                text = ""
            else:
                text += part.replace("{name}", name)
        return " ".join([*terms, self._literal(text)])

    def _arguments(self, function: Schema, rule: str) -> Iterator[str]:
        name = function["name"]
        schema: Schema | None = arguments_schema(function, self._use)
        if schema is ANY_OBJECT:
            schema = None
        notation = Notation(self._notation.added, partial(self._note, name))
        try:
            yield from self._form.syntax.rules(schema, rule, notation)
        except (ValueError, RecursionError) as error:
            raise BadRequest("tools.schema", param="tools", name=name, detail=str(error)) from error

    def _note(self, name: str, detail: str) -> None:
        # A strict schema must be enforced entirely.
        if name in self._use.strict:
            raise ValueError(detail)
        self.unenforced.append(f"{name}: {detail}")


def answer_text(messages: Messages) -> str:
    """Return the rule for an answer's text, which cannot hold the markup of messages."""
    return f"ANSWER: /(?s:.+)/ & ~/(?s:.*){messages.markers}(?s:.*)/"


def arguments_schema(function: Schema, use: ToolUse) -> Schema:
    """Return the schema for a call's arguments; `ANY_OBJECT` if not enforced.

    Unenforced keywords are ignored unless the function is strict. Raises BadRequest if the schema
    allows no object, or none that terminates.
    """
    name, strict = function["name"], function["name"] in use.strict
    if not (strict or use.forced):
        return ANY_OBJECT
    schema: Schema = function.get("parameters", {"type": "object"})
    kinds = schema.get("type", "object")
    try:
        if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
            raise ValueError(f"type {kinds}, not object")
        options = schema.get("x-guidance", {})
        if isinstance(options, Mapping):
            options = {**SPACING, **({} if strict else LENIENT), **options}
        schema = {**schema, "type": "object", "x-guidance": options}
        text = json.dumps(schema)
        check_integers(text)
        if "$ref" in text:
            check_depth(schema)
            schema = prune_nonterminating(schema)
    except (ValueError, RecursionError) as error:
        raise BadRequest("tools.schema", param="tools", name=name, detail=str(error)) from error
    return schema


def _slashed(pattern: str) -> str:
    return pattern.replace("/", r"\/")
