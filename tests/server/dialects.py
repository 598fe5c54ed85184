"""Each dialect through its official client, in one form: what is asked, and what was answered.

`Ask` names what every dialect can be asked for; `Said` is an answer, whole or streamed. A dialect
says in `lacks` which parts of `Ask` its API does not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import anthropic
import ollama
import openai

from tests.server.running import TARGET

NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


def user(text: str) -> list[Any]:
    """A conversation of one message, in the form of every dialect."""
    return [{"role": "user", "content": text}]


def markup(name: str, **arguments: Any) -> str:
    """A call as the bundled models write it; models that spell make those of their prompt."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


class Call(NamedTuple):
    name: str
    arguments: Any
    id: str = ""


@dataclass(frozen=True)
class Said:
    """`end` is stop, length or calls; `prompt` counts cached tokens, too; `turn` is the answer as
    the dialect's history has it."""

    text: str
    reasoning: str
    calls: list[Call]
    end: str
    prompt: int
    cached: int
    output: int
    warnings: list[Any]
    id: str
    model: str
    turn: Any

    @property
    def made(self) -> list[tuple[str, Any]]:
        return [(call.name, call.arguments) for call in self.calls]


@dataclass(frozen=True)
class Ask:
    """`turns` are texts of the user, answers, and results of calls as (call, text) pairs."""

    turns: Iterable[str | Said | tuple[Call, str]]
    tools: Mapping[str, Any] = field(default_factory=dict)
    choice: str = ""
    """required, none or the name of a tool"""
    single: bool = False
    strict: bool = False
    schema: Any = None
    think: bool = False
    system: str = ""
    stop: str = ""
    limit: int = 400
    model: str = TARGET
    extra: Mapping[str, Any] = field(default_factory=dict)
    more_tools: tuple[Any, ...] = ()
    """In the dialect's own form."""


def warned(answer: Any) -> list[Any]:
    found: list[Any] = (answer.model_extra or {}).get("warnings", [])
    return found


class Chat:
    prefix: ClassVar = "chatcmpl-"
    error: ClassVar = openai.APIStatusError
    lacks: ClassVar[frozenset[str]] = frozenset()
    ends: ClassVar = {"stop": "stop", "length": "length", "tool_calls": "calls"}

    def client(self, url: str) -> Any:
        return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    def tool(self, name: str, schema: Any, strict: bool | None) -> Any:
        function = {"name": name, "parameters": schema}
        return {"type": "function", "function": function | ({"strict": True} if strict else {})}

    def turn(self, turn: Any) -> list[Any]:
        if isinstance(turn, Said):
            return [turn.turn]
        if isinstance(turn, str):
            return user(turn)
        return [{"role": "tool", "tool_call_id": turn[0].id, "content": turn[1]}]

    def body(self, ask: Ask) -> dict[str, Any]:
        messages = [{"role": "system", "content": ask.system}] if ask.system else []
        for turn in ask.turns:
            messages += self.turn(turn)
        extra = dict(ask.extra)
        body: dict[str, Any] = {"model": ask.model, "messages": messages, "max_tokens": ask.limit}
        tools = [self.tool(name, schema, ask.strict) for name, schema in ask.tools.items()]
        body |= {"tools": [*ask.more_tools, *tools]} if tools else {}
        named = {"type": "function", "function": {"name": ask.choice}}
        plain = ("required", "none")
        body |= {"tool_choice": ask.choice if ask.choice in plain else named} if ask.choice else {}
        body |= {"parallel_tool_calls": False} if ask.single else {}
        body |= {"stop": ask.stop} if ask.stop else {}
        form = {"name": "it", "schema": ask.schema}
        body |= (
            {"response_format": {"type": "json_schema", "json_schema": form}}
            if form["schema"]
            else {}
        )
        return body | {"extra_body": extra | ({} if ask.think else {"reasoning_effort": "none"})}

    def whole(self, client: Any, ask: Ask) -> Said:
        answer = client.chat.completions.create(**self.body(ask))
        (choice,) = answer.choices
        message: Any = choice.message
        calls = [
            Call(call.function.name, call.function.arguments, call.id)
            for call in message.tool_calls or ()
        ]
        reasoning = (message.model_extra or {}).get("reasoning_content") or ""
        return self.said(
            message.content or "", reasoning, calls, choice.finish_reason, answer, message
        )

    def stream(self, client: Any, ask: Ask) -> Said:
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**self.body(ask), **usage))
        text, reasoning, reason, calls = "", "", "", list[list[str]]()
        for choice in (choice for chunk in chunks for choice in chunk.choices):
            delta = choice.delta
            text += delta.content or ""
            reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
            reason = choice.finish_reason or reason
            for call in delta.tool_calls or ():
                if call.id:
                    calls.append([call.function.name, "", call.id])
                calls[call.index][1] += call.function.arguments
        assert len({chunk.id for chunk in chunks}) == 1
        made = [Call(*call) for call in calls]
        return self.said(text, reasoning, made, reason, chunks[-1], None)

    def said(
        self, text: str, reasoning: str, calls: list[Call], reason: str, last: Any, turn: Any
    ) -> Said:
        read = [call._replace(arguments=json.loads(call.arguments)) for call in calls]
        usage = last.usage
        cached = usage.prompt_tokens_details.cached_tokens
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        counts = (usage.prompt_tokens, cached, usage.completion_tokens)
        end = self.ends[reason]
        return Said(text, reasoning, read, end, *counts, warned(last), last.id, last.model, turn)


class Responses(Chat):
    prefix: ClassVar = "resp_"
    lacks: ClassVar = frozenset({"stop", "prefill"})

    def tool(self, name: str, schema: Any, strict: bool | None) -> Any:
        return {"type": "function", "name": name, "parameters": schema, "strict": bool(strict)}

    def turn(self, turn: Any) -> list[Any]:
        if isinstance(turn, Said):
            return list(turn.turn)
        if isinstance(turn, str):
            return user(turn)
        return [{"type": "function_call_output", "call_id": turn[0].id, "output": turn[1]}]

    def body(self, ask: Ask) -> dict[str, Any]:
        chat = super().body(ask)
        body = {
            name: chat[name] for name in ("model", "tools", "parallel_tool_calls") if name in chat
        }
        items = [item for turn in ask.turns for item in self.turn(turn)]
        body |= {"input": items, "max_output_tokens": ask.limit, "extra_body": dict(ask.extra)}
        body |= {"instructions": ask.system} if ask.system else {}
        body |= {} if ask.think else {"reasoning": {"effort": "none"}}
        if ask.choice:
            plain = ask.choice in ("required", "none")
            body["tool_choice"] = ask.choice if plain else {"type": "function", "name": ask.choice}
        if ask.schema:
            form = {"type": "json_schema", "name": "it", "schema": ask.schema}
            body["text"] = {"format": form}
        return body

    def whole(self, client: Any, ask: Ask) -> Said:
        return self.read(client.responses.create(**self.body(ask)))

    def stream(self, client: Any, ask: Ask) -> Said:
        events = list(client.responses.create(**self.body(ask), stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        said = self.read(events[-1].response)
        assert text == said.text
        return said

    def read(self, answer: Any) -> Said:
        items = [item.model_dump(exclude_none=True) for item in answer.output]
        reasoning = [
            part["text"] for i in items if i["type"] == "reasoning" for part in i["content"]
        ]
        calls = [
            Call(item["name"], json.loads(item["arguments"]), item["call_id"])
            for item in items
            if item["type"] == "function_call"
        ]
        assert answer.object == "response"
        assert answer.status in ("completed", "incomplete")
        cut = answer.incomplete_details
        assert cut is None or cut.reason == "max_output_tokens"
        usage = answer.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        return Said(
            answer.output_text,
            "".join(reasoning),
            calls,
            "length" if cut else "calls" if calls else "stop",
            usage.input_tokens,
            usage.input_tokens_details.cached_tokens,
            usage.output_tokens,
            warned(answer),
            answer.id,
            answer.model,
            items,
        )


class Messages:
    prefix: ClassVar = "msg_"
    error: ClassVar = anthropic.APIStatusError
    lacks: ClassVar[frozenset[str]] = frozenset()
    ends: ClassVar = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "tool_use": "calls",
    }

    def client(self, url: str) -> Any:
        return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)

    def tool(self, name: str, schema: Any, strict: bool | None) -> Any:
        return {"name": name, "input_schema": schema} | ({"strict": True} if strict else {})

    def turn(self, turn: Any) -> list[Any]:
        if isinstance(turn, Said):
            return [{"role": "assistant", "content": turn.turn}]
        if isinstance(turn, str):
            return user(turn)
        result = {"type": "tool_result", "tool_use_id": turn[0].id, "content": turn[1]}
        return [{"role": "user", "content": [result]}]

    def body(self, ask: Ask) -> dict[str, Any]:
        messages = [message for turn in ask.turns for message in self.turn(turn)]
        body: dict[str, Any] = {"model": ask.model, "messages": messages, "max_tokens": ask.limit}
        tools = [self.tool(name, schema, ask.strict) for name, schema in ask.tools.items()]
        body |= {"tools": [*ask.more_tools, *tools]} if tools else {}
        body |= {"system": ask.system} if ask.system else {}
        body |= {"stop_sequences": [ask.stop, "never"]} if ask.stop else {}
        body |= {"thinking": {"type": "enabled", "budget_tokens": 1024}} if ask.think else {}
        if ask.choice or ask.single:
            kinds = {"required": {"type": "any"}, "none": {"type": "none"}, "": {"type": "auto"}}
            choice = kinds.get(ask.choice, {"type": "tool", "name": ask.choice})
            body["tool_choice"] = choice | (
                {"disable_parallel_tool_use": True} if ask.single else {}
            )
        if ask.schema:
            body["output_config"] = {"format": {"type": "json_schema", "schema": ask.schema}}
        return body | {"extra_body": dict(ask.extra)}

    def whole(self, client: Any, ask: Ask) -> Said:
        return self.read(client.messages.create(**self.body(ask)))

    def stream(self, client: Any, ask: Ask) -> Said:
        with client.messages.stream(**self.body(ask)) as stream:
            events = list(stream)
            final = stream.get_final_message()
        (delta,) = [event for event in events if event.type == "message_delta"]
        return self.read(final, warned(delta))

    def read(self, answer: Any, warnings: list[Any] | None = None) -> Said:
        assert (answer.type, answer.role) == ("message", "assistant")
        blocks = {kind: [b for b in answer.content if b.type == kind] for kind in _BLOCKS}
        assert all(block.signature for block in blocks["thinking"])
        calls = [Call(block.name, block.input, block.id) for block in blocks["tool_use"]]
        assert all(call.id.startswith("toolu_") for call in calls)
        cached = answer.usage.cache_read_input_tokens or 0
        return Said(
            "".join(block.text for block in blocks["text"]),
            "".join(block.thinking for block in blocks["thinking"]),
            calls,
            self.ends[answer.stop_reason],
            answer.usage.input_tokens + cached,
            cached,
            answer.usage.output_tokens,
            warned(answer) if warnings is None else warnings,
            answer.id,
            answer.model,
            [block.model_dump(exclude_none=True) for block in answer.content],
        )


_BLOCKS: Final = ("thinking", "text", "tool_use")


class Ollama:
    prefix: ClassVar = ""
    error: ClassVar = ollama.ResponseError
    lacks: ClassVar = frozenset({"choice", "strict", "prefill", "cached", "warnings"})

    def client(self, url: str) -> Any:
        return ollama.Client(url)

    def turn(self, turn: Any) -> list[Any]:
        if isinstance(turn, Said):
            return [turn.turn]
        if isinstance(turn, str):
            return user(turn)
        return [{"role": "tool", "tool_name": turn[0].name, "content": turn[1]}]

    def body(self, ask: Ask) -> dict[str, Any]:
        messages = [{"role": "system", "content": ask.system}] if ask.system else []
        for turn in ask.turns:
            messages += self.turn(turn)
        options = {"num_predict": ask.limit, **ask.extra} | (
            {"stop": [ask.stop]} if ask.stop else {}
        )
        tools = [Chat().tool(name, schema, None) for name, schema in ask.tools.items()]
        body = {"model": ask.model, "messages": messages, "options": options, "think": ask.think}
        return body | {"tools": tools or None, "format": ask.schema}

    def whole(self, client: Any, ask: Ask) -> Said:
        return self.read([client.chat(**self.body(ask))])

    def stream(self, client: Any, ask: Ask) -> Said:
        return self.read(list(client.chat(**self.body(ask), stream=True)))

    def read(self, parts: list[Any]) -> Said:
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        messages, last = [part.message for part in parts], parts[-1]
        calls = [
            Call(call.function.name, dict(call.function.arguments))
            for message in messages
            for call in message.tool_calls or ()
        ]
        assert last.total_duration >= last.prompt_eval_duration + last.eval_duration > 0
        return Said(
            "".join(message.content or "" for message in messages),
            "".join(message.thinking or "" for message in messages).strip(),
            calls,
            "calls" if calls and last.done_reason == "stop" else last.done_reason,
            last.prompt_eval_count,
            0,
            last.eval_count,
            [],
            "",
            last.model,
            messages[0],
        )


DIALECTS: Final[Mapping[str, Any]] = {
    "chat": Chat(),
    "responses": Responses(),
    "messages": Messages(),
    "ollama": Ollama(),
}
