"""Outputs of models and what they mean, as recorded in llama.cpp's tests/test-chat.cpp."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from tests.templates.cpp import Reader, Unreadable
from tests.templates.fetched import read

_STATEMENT: Final = re.compile(
    r"""
    (?P<tool>static\ common_chat_tool\ (?P<tool_name>\w+))\s*(?=\{)
    | common_chat_msg\ (?P<message>\w+)\s*=\s*
    | (?:const\ char\ \*|(?:static\ )?const\ std::string|auto)
      \s*&?\s*(?P<text>\w+)\s*=(?!\s*peg_tester)
    | auto\ (?P<tester>\w+)\s*=\s*peg_tester(?=\()
    | ^\ +(?P<case>tst2?)\.test(?=\()
    | for\ \(const\ (?:char\ \*|auto\ &)\ (?P<loop>\w+)\ :\s*(?:std::vector<[^{}]*)?(?=\{)
    | (?P<lfm2>test_lfm2_parser)\(const
    """,
    re.VERBOSE | re.MULTILINE,
)

_AS_CONTENT: Final = "COMMON_REASONING_FORMAT_NONE"
_THOUGHT: Final = re.compile("think|channel|raisonnement", re.IGNORECASE)


@dataclass(slots=True)
class Message:
    """What an output means. Calls are of name, JSON text, and id."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)


@dataclass(slots=True)
class Case:
    """One recorded output of the model of `template`. `line` is that of the file."""

    template: str
    line: int
    text: str
    expected: Message
    tools: list[dict[str, Any]]
    options: dict[str, Any]

    @property
    def skipped(self) -> str | None:
        """Return why there is nothing to compare: what omlx has no equal of."""
        if self.options.get("is_partial"):
            return "an output that has not ended"
        if "continue_final_message" in self.options:
            return "continues a message"
        parsed = self.options.get("reasoning_format", _AS_CONTENT) != _AS_CONTENT
        if not parsed and _THOUGHT.search(self.expected.content):
            return "reasoning given back as content"
        return None


@cache
def cases() -> dict[str, list[Case]]:
    """Return the recorded outputs by template. Skips the test if the file was not fetched."""
    by_template: dict[str, list[Case]] = {}
    for case in _Cases(read("test-chat.cpp")).read():
        by_template.setdefault(case.template, []).append(case)
    return by_template


class _Cases:
    def __init__(self, source: str) -> None:
        self._source = source
        self._testers: dict[str, list[str]] = {}
        self.unreadable: list[tuple[int, str]] = []
        self._names: dict[str, Any] = {
            "simple_assist_msg": _message,
            "message_with_tool_calls": lambda name, arguments: _message("", "", name, arguments),
            "message_with_tool_calls_and_reasoning": _call_after_reasoning,
            "message_with_reasoning_and_tool_call": lambda thought, name, arguments: _message(
                "", thought, name, arguments
            ),
            "message_with_content_and_tool_call": lambda content, name, arguments: _message(
                content, "", name, arguments
            ),
            "message_with_reasoning_content_and_multiple_tool_calls": _several_calls,
            "message_user": Message("Hey there!"),
        }

    def read(self) -> Iterator[Case]:
        for match in _STATEMENT.finditer(self._source):
            reader = Reader(self._source, self._names)
            reader.at = match.end()
            try:
                yield from self._statement(match, reader)
            except Unreadable as error:
                line = self._source.count("\n", 0, match.start()) + 1
                if match["case"]:
                    self.unreadable.append((line, str(error)))

    def _statement(self, match: re.Match[str], reader: Reader) -> Iterator[Case]:
        if match["tool"]:
            self._names[match["tool_name"]] = _tool(reader.expression())
        elif match["loop"]:
            self._names[match["loop"]] = reader.expression()
        elif match["lfm2"]:
            listed = re.search(r"for \(const char \* tmpl : (?=\{)", self._source)
            assert listed is not None
            templates = Reader(self._source, self._names)
            templates.at = listed.end()
            self._names["template_path"] = templates.expression()
        elif match["tester"]:
            reader.take("(")
            path = reader.expression()
            self._testers[match["tester"]] = path if isinstance(path, list) else [path]
        elif match["case"]:
            case = self._case(match, reader)
            for path in self._testers[match["case"]]:
                name = path.rpartition("/")[2].removesuffix(".jinja")
                yield Case(name, *case)
        else:
            self._names[match["message"] or match["text"]] = reader.expression()

    def _case(self, match: re.Match[str], reader: Reader) -> tuple[Any, ...]:
        line = self._source.count("\n", 0, match.start()) + 1
        (text,) = reader.arguments()
        expected, tools, options = Message(), list[dict[str, Any]](), dict[str, Any]()
        while reader.take("."):
            name, arguments = reader.word(), reader.arguments()
            match name:
                case "run":
                    break
                case "expect":
                    (expected,) = arguments
                    expected = Message(expected.content, expected.reasoning, expected.calls)
                case "expect_content":
                    expected.content = arguments[0]
                case "expect_reasoning":
                    expected.reasoning = arguments[0]
                case "expect_tool_calls":
                    expected.calls = [_call(*call) for call in arguments[0]]
                case "tools":
                    tools = [_tool(tool) for tool in arguments[0]]
                case _:
                    options[name] = arguments[0] if arguments else True
        return line, text, expected, tools, options


def _tool(tool: Any) -> dict[str, Any]:
    """Return a function as chat templates take it; one that stands in the case is a list."""
    if isinstance(tool, dict):
        return tool
    name, description, parameters = tool
    function = {"name": name, "description": description, "parameters": json.loads(parameters)}
    return {"type": "function", "function": function}


def _message(
    content: str, reasoning: str = "", name: str = "", arguments: str = "", call_id: str = ""
) -> Message:
    calls = [(name, arguments, call_id)] if name or call_id else []
    return Message(content, reasoning, calls)


def _call_after_reasoning(name: str, arguments: str, reasoning: str) -> Message:
    return _message("", reasoning, name, arguments)


def _several_calls(reasoning: str, content: str, calls: list[tuple[str, str]]) -> Message:
    return Message(content, reasoning, [(name, arguments, "") for name, arguments in calls])


def _call(name: str, arguments: str, call_id: Any = "") -> tuple[str, str, str]:
    return name, arguments, call_id or ""
