"""Compactions are computed ahead of the program's request, in the shape of the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tokenizer_utils import load as load_tokenizer

from omlx import storage
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.pool.pool import Pool
from omlx.server.beginnings import transcript
from omlx.server.beginnings.beginning import MAX_AGE_S
from omlx.server.beginnings.compaction import (
    KIND,
    LEAST_SHARE,
    MAX_PROGRAMS,
    SHARE,
    Compactions,
    Conversation,
    Shape,
    asks_to_compact,
    shape_of,
)
from omlx.server.beginnings.next_turn import NextTurns, Turn
from omlx.server.beginnings.prewarmer import BackgroundPrefill
from omlx.server.beginnings.store import BeginningStore
from omlx.server.request.engine_requests import render_conversation
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.stream import GenerationStream
from omlx.server.request.tooling import AnswerMessage
from omlx.settings.schema import Settings
from omlx.text.events import ToolCallArguments, ToolCallStart
from omlx.text.tools import ToolUse
from tests.server.running import HYBRID, PATIENCE_S, TARGET, Running, omlx
from tests.storage import homes

TOOLS = ToolUse(({"type": "function", "function": {"name": "look", "description": "Looks."}},))
ASKS = (
    "Your task is to create a detailed summary of the conversation so far.",
    "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.",
    "Provide a detailed prompt for continuing our conversation above.",
)


def say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


SYSTEM, HELLO, DONE = say("system", "Be brief."), say("user", "Hello."), say("assistant", "Hi.")
ASK = say("user", ASKS[0])


def request(*messages: Mapping[str, Any], tools: ToolUse | None = TOOLS) -> GenerationRequest:
    return GenerationRequest(messages=messages, tools=tools)


def shapes(learnt: Compactions, model: str = "m", program: str = "agent") -> list[Shape]:
    return asyncio.run(learnt.shapes(model, program))


@pytest.mark.parametrize("ask", [*ASKS, *transcript.ASKS.values()])
def test_the_messages_of_known_programs_ask(ask: str) -> None:
    assert asks_to_compact(request(SYSTEM, HELLO, DONE, say("user", ask)))
    assert not asks_to_compact(request(SYSTEM, say("user", ask), DONE, HELLO))
    assert not asks_to_compact(request(SYSTEM, HELLO))


@pytest.mark.parametrize("tools", [TOOLS, None])
@pytest.mark.parametrize("system", [SYSTEM, say("system", "You summarise.")])
def test_a_shape_is_learnt_and_used(system: dict[str, Any], tools: ToolUse | None) -> None:
    learnt = Compactions()
    learnt.note("m", "agent", request(SYSTEM, HELLO))
    learnt.note("m", "agent", request(SYSTEM, say("user", "Of a sub-agent.")))
    learnt.note("m", "agent", request(SYSTEM, say("user", "A title?"), tools=None))
    assert shapes(learnt) == []
    assert learnt.learn("m", "agent", request(system, HELLO, DONE, ASK, tools=tools))
    (shape,) = shapes(learnt)
    assert shapes(learnt, program="other") == shapes(learnt, "n") == []
    more = request(say("system", "Be briefer."), say("user", "Other."), DONE)
    expected = say("system", "Be briefer.") if system is SYSTEM else system
    compaction = shape.of(more)
    assert compaction is not None
    assert list(compaction.messages) == [expected, *more.messages[1:], ASK]
    assert compaction.tools == tools


def test_the_programs_of_the_last_conversations_are_known() -> None:
    learnt = Compactions()
    for number in range(MAX_PROGRAMS + 1):
        learnt.note("m", f"p{number}", request(SYSTEM, HELLO))
        learnt.learn("m", f"p{number}", request(SYSTEM, HELLO, DONE, ASK))
    known = [bool(shapes(learnt, program=f"p{number}")) for number in range(MAX_PROGRAMS + 1)]
    assert known == [False] + [True] * MAX_PROGRAMS


def test_a_compaction_is_prepared_before_the_size_at_which_the_last_one_came() -> None:
    learnt, froms = Compactions(), list[float]()
    for filled in (0.0, 0.1, 0.75, 0.99):
        learnt.note("m", "agent", request(SYSTEM, HELLO)).filled = filled
        learnt.learn("m", "agent", request(SYSTEM, HELLO, DONE, ASK))
        froms += (shape.prepared_from for shape in shapes(learnt))
    assert froms == [SHARE, LEAST_SHARE, pytest.approx(0.6), pytest.approx(0.792)]


def test_shapes_outlive_the_process(tmp_path: Path) -> None:
    for program, system in (("a", SYSTEM), ("b", say("system", "You summarise. \ud800"))):
        learnt = Compactions(tmp_path)  # one process after another
        learnt.note("m", program, request(SYSTEM, HELLO))
        compaction = request(system, HELLO, DONE, ASK, tools=None)
        assert learnt.learn("m", program, compaction)
        learnt.save("m")
    later = Compactions(tmp_path)
    made = [
        shape.of(request(SYSTEM, HELLO, DONE))
        for one in "ab"
        for shape in shapes(later, program=one)
    ]
    assert [list(one.messages) for one in made if one] == [
        [SYSTEM, HELLO, DONE, ASK],
        [system, HELLO, DONE, ASK],
    ]
    assert [one.tools for one in made if one] == [None, None]
    homes.damage(tmp_path, KIND, "[1]")
    assert shapes(Compactions(tmp_path), program="a") == []
    store = BeginningStore(tmp_path)
    store.forget("m")
    assert homes.measured(tmp_path, KIND) == {}


def test_shapes_of_other_kinds_and_processes_stay(tmp_path: Path) -> None:
    first, second = Compactions(tmp_path), Compactions(tmp_path)
    for learnt, kind in ((first, "turns"), (second, "turn"), (first, "more turns")):
        begun = pi_asks(transcript.ASKS[kind], "[User]: Hello.", summary="Before.")
        before = f"{transcript.SUMMARY}Before.\n</summary>"
        learnt.note("m", "pi", request(SYSTEM, say("user", before), HELLO))
        assert learnt.learn("m", "pi", begun)
        learnt.save("m")
    for learnt in (first, Compactions(tmp_path), second):
        kinds = {shape.kind for shape in shapes(learnt, program="pi")}
        assert kinds == {"turns", "turn", "more turns"}


def test_shapes_are_forgotten(tmp_path: Path) -> None:
    """After 30 days, and at once where a model's are deleted, also while one is learnt."""
    now, deletions = 0.0, list[str]()

    def wall() -> float:
        if deletions:
            store.forget(deletions.pop())
        return now

    store = BeginningStore(tmp_path, wall=wall)
    learnt = store.compactions
    learnt.note("m", "agent", request(SYSTEM, HELLO))
    assert learnt.learn("m", "agent", request(SYSTEM, HELLO, DONE, ASK))
    learnt.save("m")
    store.read()
    assert [*homes.measured(tmp_path, KIND)["m"]] == ["agent"]
    now = MAX_AGE_S + 1
    store.read()
    assert homes.measured(tmp_path, KIND) == {"m": {}}
    store.forget("m")
    assert not learnt.learn("m", "agent", request(SYSTEM, HELLO, DONE, ASK))
    learnt.save("m")
    assert homes.measured(tmp_path, KIND) == {"m": {}}
    learnt.note("m", "agent", request(SYSTEM, HELLO))
    deletions.append("m")
    assert not learnt.learn("m", "agent", request(SYSTEM, HELLO, DONE, ASK))
    assert shapes(learnt) == []


class Disk(BackgroundPrefill):
    """Says whether prefixes are stored."""

    def __init__(self, stored: bool) -> None:
        self._stored = stored

    def on_disk(self, model: str) -> bool:
        return self._stored


@pytest.mark.parametrize(
    ("prewarm", "stored", "kept"),
    [("mains", True, True), ("mains", False, False), ("off", True, False)],
)
def test_shapes_are_kept_where_prefixes_are(
    prewarm: str, stored: bool, kept: bool, tmp_path: Path
) -> None:
    learnt, settings, unused = Compactions(tmp_path), Settings(prewarm=prewarm), Any
    learnt.note("m", "agent", request(SYSTEM, HELLO))
    turns = NextTurns(Disk(stored), cast(Pool, unused), lambda: settings, learnt)
    stream = SimpleNamespace(served=SimpleNamespace(id="m"))

    async def ask() -> None:
        compaction = request(SYSTEM, HELLO, DONE, ASK)
        turns.watch(cast(GenerationStream, stream), compaction, "agent/1")
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(ask())
    assert len(shapes(learnt, program="agent")) == 1
    assert bool((tmp_path / storage.FILE).exists() and homes.measured(tmp_path, KIND)) == kept


def called(id: str, text: str = "", thought: str = "", **arguments: Any) -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
    message = say("assistant", text) | {"tool_calls": [call]}
    return message | ({"reasoning_content": thought} if thought else {})


LONG_RESULT = "🌧" * 1_500
PI = (
    say("user", "Look."),
    called("1", "I look.", "Hm.", command='ls "ä"', depth=[1, None]),
    {"role": "tool", "tool_call_id": "1", "content": LONG_RESULT},
    say("assistant", "It rains."),
    say("user", "And now?"),
    called("2", command="date"),
    {"role": "tool", "tool_call_id": "2", "content": ""},
    say("assistant", "It is " + "late " * 40),
)
WRITTEN = (
    "[User]: Look.",
    '[Assistant thinking]: Hm.\n\n[Assistant]: I look.\n\n[Assistant tool calls]: bash(command="ls '
    '\\"ä\\"", depth=[1,null])',
    f"[Tool result]: {'🌧' * 1_000}\n\n[... 1000 more characters truncated]",
    "[Assistant]: It rains.",
    "[User]: And now?",
    '[Assistant tool calls]: bash(command="date")',
)
"""As pi 0.74 writes them."""


def pi_asks(ask: str, *entries: str, summary: str = "") -> GenerationRequest:
    text = "<conversation>\n" + "\n\n".join(entries) + "\n</conversation>\n\n"
    if summary:
        text += f"<previous-summary>\n{summary}\n</previous-summary>\n\n"
    return request(say("system", "You summarise."), say("user", text + ask), tools=None)


@pytest.mark.parametrize(
    ("kept", "summary", "kind", "entries"),
    [
        (20, "", "turns", WRITTEN[:4]),
        (20, "", "turn", WRITTEN[4:]),
        (60, "", "turns", WRITTEN[:4]),
        (20, "Before.\n\n<read-files>\na\n</read-files>", "more turns", WRITTEN[:4]),
    ],
)
def test_the_transcripts_of_pi(
    kept: int,
    summary: str,
    kind: str,
    entries: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the messages before those that are kept, learnt from one conversation for another."""
    monkeypatch.setattr(transcript, "KEPT_TOKENS", kept)
    ask = transcript.ASKS[kind]
    learnt, other = Compactions(), "Other.\n\n<modified-files>\nb\n</modified-files>"

    def conversation(*messages: Mapping[str, Any], summary: str) -> GenerationRequest:
        before = (
            "The conversation history before this point was compacted into the following summary:"
        )
        first = say("user", f"{before}\n\n<summary>\n{summary}\n</summary>")
        return request(SYSTEM, *([first] if summary else []), *messages)

    start = [HELLO, DONE] if kind != "turn" else []
    begun = conversation(*start, *PI[-4:-1], summary=other if summary else "")
    learnt.note("m", "pi", begun).answer = say("assistant", "late " * 80)
    written = ["[User]: Hello.", "[Assistant]: Hi."] if start else [*WRITTEN[4:]]
    asked = pi_asks(ask, *written, summary=other if summary else "")
    assert asks_to_compact(asked)
    assert learnt.learn("m", "pi", asked)
    (shape,) = shapes(learnt, program="pi")
    compaction = shape.of(conversation(*PI, summary=summary))
    assert compaction == pi_asks(ask, *entries, summary=summary)
    assert shape.of(conversation(*PI[:1], summary=summary)) is None  # all of it is kept


def test_a_request_about_another_conversation_teaches_nothing() -> None:
    conversation = Conversation(request(SYSTEM, HELLO, DONE))
    for other in ((SYSTEM, DONE, ASK), (SYSTEM, HELLO, ASK), (SYSTEM, HELLO, DONE)):
        assert shape_of(conversation, request(*other)) is None
    assert shape_of(Conversation(request(HELLO)), request(HELLO, ASK)) is not None


CONTEXT = 2_000
LONG = "Rain falls on the hills, and the river carries stones to the sea. " * 24
SYSTEM_LONG = say("system", LONG[:600])


def ask(running: Running, *messages: Mapping[str, Any], tools: bool = True) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": 12,
        "seed": 4,
        "temperature": 0.7,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    if tools:
        body["tools"] = TOOLS.functions
    answer = running.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    return record


def hold(running: Running, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Hold a conversation with tools, and return its messages."""
    messages = [SYSTEM_LONG]
    for text in texts:
        messages.append(say("user", text))
        record = ask(running, *messages)
        messages.append(say("assistant", record["choices"][0]["message"]["content"] or ""))
    assert record["usage"]["context_left"] == CONTEXT - record["usage"]["total_tokens"]
    return messages


def compaction_of(program: str, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with which a program compacts a conversation, without tools."""
    if program != "pi":
        return [*messages, ASK]
    names = {"user": "User", "assistant": "Assistant"}
    entries = [f"[{names[one['role']]}]: {one['content']}" for one in messages[1:-2]]
    return list(pi_asks(transcript.ASKS["turns"], *entries).messages)


def uncached(running: Running, model: str, messages: Sequence[dict[str, Any]]) -> float:
    """Return the share of a prompt that would be computed now."""
    body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    probed = running.http.post(f"/v1/models/{model}/prefixes/probe", json=body).json()
    return 1 - probed["cached_tokens"] / probed["prompt_tokens"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "program"),
    [
        (HYBRID, "pi"),
        pytest.param(HYBRID, "opencode", marks=pytest.mark.slow),
        pytest.param(TARGET, "opencode", marks=pytest.mark.slow),
    ],
)
def test_the_next_compaction_begins_at_its_first_token(
    model: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the next process, though without tools its prompt parts at the very beginning."""
    monkeypatch.setattr(transcript, "KEPT_TOKENS", 40)
    texts = [LONG, f"And then? {LONG}", LONG[:200]]
    settings = Settings(prewarm="always", speculation="off", max_context=CONTEXT)
    with omlx(settings, default=model, beginnings=BeginningStore(tmp_path)) as running:
        messages = compaction_of(program, hold(running, texts))
        assert uncached(running, model, messages) > 0.3
        cold = ask(running, *messages, tools=False)["choices"]
    with omlx(settings, default=model, beginnings=BeginningStore(tmp_path)) as running:
        assert compaction_of(program, hold(running, texts)) == messages
        until = time.monotonic() + PATIENCE_S
        while uncached(running, model, messages) > 0.1:
            assert time.monotonic() < until
            time.sleep(0.02)  # the end of a background task
        assert ask(running, *messages, tools=False)["choices"] == cold


ASK_CHARACTERS = {"claude": 6_000, "codex": 600, "opencode": 1_400, "pi": 2_000}
"""Characters of the messages with which programs ask, as long as theirs."""


def full(window: int, result: str, tokenizer: TokenizerWrapper) -> list[dict[str, Any]]:
    """Return a conversation whose prompt fills 80 % of a window, each turn with a result."""
    messages = [SYSTEM_LONG, say("user", LONG)]
    turn = [called("0", command=LONG[:80]), {"role": "tool", "tool_call_id": "0"}]
    turn[1] |= {"content": result, "name": "bash"}
    sizes = [
        len(render_conversation(tokenizer, request(*messages, *turn * count)).tokens)
        for count in (1, 2)
    ]
    turns = int((SHARE * window - sizes[0]) / (sizes[1] - sizes[0])) + 1
    for number in range(turns):
        messages += [{**turn[0], "content": f"{number}"}, turn[1]]
    return messages


@pytest.mark.parametrize(
    ("program", "window", "known", "most"),
    [
        ("claude", 32_768, False, 0.1),
        ("codex", 8_192, False, 0.1),
        ("opencode", 32_768, False, 0.04),
        ("pi", 32_768, False, 0.001),
        *((program, 8_192, True, 0.001) for program in ASK_CHARACTERS),
    ],
)
def test_the_tokens_that_a_compaction_computes(
    program: str, window: int, known: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its prompt's tokens, where 80 % of the window are filled.

    Behind an answer all is `known`. Behind a call the result comes with the request itself.
    """
    monkeypatch.setattr(transcript, "KEPT_TOKENS", window // 4)
    tokenizer, answer = load_tokenizer(BUNDLED / HYBRID), AnswerMessage()
    result = {"role": "tool", "tool_call_id": "9", "content": LONG[:600], "name": "bash"}
    before = full(window, LONG[:600], tokenizer)
    if known:
        answer.text.append(LONG[:200])
        messages = [*before, say("assistant", LONG[:200])]
    else:
        answer.add(ToolCallStart(0, "9", "bash"))
        answer.add(ToolCallArguments(0, '{"command": "date"}'))
        messages = [*before, called("9", command="date"), result]
    sentence = transcript.ASKS["turn"] if program == "pi" else ASK["content"]
    text = f"{sentence}{LONG * 4}"[: ASK_CHARACTERS[program]]
    asked = request(SYSTEM_LONG, *messages[1:], say("user", text))
    if program == "opencode":
        asked = request(say("system", "You summarise."), *asked.messages[1:], tools=None)
    elif program == "pi":
        written = transcript.compaction_text(text, window // 4, messages[1:])
        asked = request(say("system", "You summarise."), say("user", written or ""), tools=None)
    shape = shape_of(Conversation(request(*messages)), asked)
    assert shape is not None
    prompts = Turn(request(*before), answer).compactions(tokenizer, window, [shape])
    tokens = render_conversation(tokenizer, asked).tokens
    cached = max(len(one) for one in prompts if tokens[: len(one)] == one)
    assert 1 - cached / len(tokens) <= most
