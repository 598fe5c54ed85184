"""Workloads of `python -m lab.bench speculation`: from verbatim copies to text without any pattern.

Prompts come from a generator seeded with the trial that draws snippets, names and numbers: trials
do not repeat one another, and two runs of the benchmark ask the same. No text is from Python's
standard library, on which the bundled models were trained. `PROMPTS` are fixed.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from omlx.measure.texts import FUNCTION_SEPARATOR, SEPARATOR, read_sections

TEXTS: Final = Path(__file__).resolve().parent / "texts"
"""Prose, words and the fixed prompts; functions are those of the server's benchmark."""

SLACK: Final = 48
"""Tokens by which an answer may exceed the text to repeat."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation, answered in at most `longest` tokens. `ends`: stop tokens end the answer."""

    messages: list[Message]
    longest: int
    tools: list[Message] | None = None
    thinks: bool = False
    temperature: float = 0.0
    ends: bool = True


@dataclass(frozen=True, slots=True)
class QuestionMaker:
    """A seeded generator, the `context` of prompt and answer in tokens, and a token counter."""

    rng: random.Random
    context: int
    count: Callable[[str], int]

    def file(self, share: float) -> str:
        """Return functions that fill `share` of the context, with varied names and numbers."""
        functions = read_sections("functions.txt", FUNCTION_SEPARATOR)
        chosen: list[str] = []
        for function in self.rng.sample(functions, len(functions)):
            longer = [*chosen, vary(self.rng, function)]
            if self.count("\n\n\n".join(longer)) <= share * self.context:
                chosen = longer
        return "\n\n\n".join(chosen or [vary(self.rng, min(functions, key=len))])

    def words(self, count: int) -> str:
        return " ".join(self.rng.choices(_words(), k=count))

    def room(self, text: str) -> int:
        """Return the token limit of an answer that repeats `text`."""
        return self.count(text) + SLACK


@dataclass(frozen=True, slots=True)
class Workload:
    """`ask` makes a question; a trial has `repeats` per stream, more for short answers.

    `random_draft`: the draft model has random weights. `ask_beside`, if any, replaces `ask` for
    every second stream.
    """

    name: str
    ask: Callable[[QuestionMaker], Question]
    repeats: int = 1
    random_draft: bool = False
    ask_beside: Callable[[QuestionMaker], Question] | None = None


def questions(
    workload: Workload, trial: int, rows: int, context: int, count: Callable[[str], int]
) -> list[Question]:
    """Return the questions of a trial: `rows` times `workload.repeats`.

    Other rows ask others: servers keep the prompts of what they answered before.
    """
    rng = random.Random(f"{workload.name} {trial} {rows} {context}")
    maker = QuestionMaker(rng, context, count)
    turns = (workload.ask, workload.ask_beside or workload.ask)
    asked: list[Question] = []
    for _ in range(workload.repeats):
        asked += [turns[row % 2](maker) for row in range(rows)]
    return asked


def vary(rng: random.Random, code: str) -> str:
    """Return `code` with about half of the names, and all numbers from 10 on, changed."""

    def other_number(number: re.Match[str]) -> str:
        return str(rng.randint(10, 10 ** len(number[0]) - 1))

    for name in names(code):
        if rng.random() < 0.5:
            code = renamed(code, name, fresh_name(rng, code))
    return re.sub(r"(?<![\w.])\d{2,}(?!\w)", other_number, code)


def names(code: str) -> list[str]:
    """Return the variables and arguments of `code`, which can be renamed safely."""
    known: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    return sorted(known - {"self", "_"})


def renamed(code: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, code)


def fresh_name(rng: random.Random, code: str) -> str:
    """Return a random word absent from `code`."""
    name = rng.choice(_words())
    while name in code:
        name = rng.choice(_words())
    return name


def uses(code: str, name: str) -> int:
    return len(re.findall(rf"\b{name}\b", code))


def _verbatim(maker: QuestionMaker) -> Question:
    code = maker.file(0.45)
    requests = ("Repeat this code exactly.", "Copy this code.", "Return the code unchanged.")
    request = maker.rng.choice(requests)
    return Question([_user(_shown(request, code))], maker.room(code))


def _small_edit(maker: QuestionMaker) -> Question:
    """Rename a variable with two to four uses."""
    code = maker.file(0.45)
    rare = [name for name in names(code) if 2 <= uses(code, name) <= 4] or names(code)
    old = maker.rng.choice(rare)
    return Question([_user(_shown(_rename(maker, code, old)[0], code))], maker.room(code))


def _heavy_edit(maker: QuestionMaker) -> Question:
    """Rename the three most used names."""
    code = maker.file(0.42)
    often = sorted(names(code), key=lambda name: -uses(code, name))[:3]
    requests = [_rename(maker, code, old)[0] for old in often]
    return Question([_user(_shown(" ".join(requests), code))], maker.room(code))


def _warm_coding(maker: QuestionMaker) -> Question:
    """Edit a file again; the first edit is part of the conversation."""
    code = maker.file(0.29)
    chosen = maker.rng.sample(names(code), 2)
    first, edited = _rename(maker, code, chosen[0])
    second, _ = _rename(maker, edited, chosen[1])
    messages = [_user(_shown(first, code)), _assistant(_fence(edited)), _user(second)]
    return Question(messages, maker.room(edited))


def _tools(maker: QuestionMaker) -> Question:
    rng = maker.rng
    if rng.random() < 0.5:
        subject = maker.words(rng.randint(2, 5))
        requests = ("Search for {}.", "Search the web for {}.", "Look up {} on the web.")
        request = rng.choice(requests).format(subject)
        tools = [_declare("web_search", "query"), _declare("read_file", "path")]
        return Question([_user(request)], 96, tools=tools)
    record = {}
    for name in maker.words(6).split():
        record[name] = rng.choice((rng.randint(10, 999), maker.words(2)))
    text = json.dumps([record, {**record, "count": rng.randint(100, 999)}])
    return Question([_user(f"Repeat this: {text}")], maker.room(text))


def _reasoning(maker: QuestionMaker) -> Question:
    a, b = maker.rng.randrange(100, 1000), maker.rng.randrange(100, 1000)
    return Question([_user(f"What is {a} + {b}?")], 160, thinks=True)


def _prose(maker: QuestionMaker) -> Question:
    """Continue a story, sampled, to full length: a small model would stop too early."""
    text = maker.rng.choice(_sections("prose.txt", "\n\n"))
    request = f"Continue this story about {maker.words(3)}.\n\n{text}"
    return Question([_user(request)], maker.context * 2 // 5, temperature=0.9, ends=False)


def _worst_case(maker: QuestionMaker) -> Question:
    """Write random words, at a temperature at which little repeats."""
    request = f"Write words that are not among these: {maker.words(maker.context // 12)}"
    return Question([_user(request)], maker.context * 2 // 5, temperature=1.5, ends=False)


WORKLOADS: Final = (
    Workload("verbatim", _verbatim),
    Workload("small edit", _small_edit),
    Workload("heavy edit", _heavy_edit),
    Workload("warm coding", _warm_coding),
    Workload("tools", _tools, repeats=4),
    Workload("reasoning", _reasoning, repeats=2),
    Workload("prose", _prose),
    Workload("edit + prose", _small_edit, ask_beside=_prose),
    Workload("hostile", _worst_case, random_draft=True),
)
WORKLOAD_NAMES: Final = tuple(workload.name for workload in WORKLOADS)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _fence(code: str) -> str:
    return f"```python\n{code}\n```"


def _shown(request: str, code: str) -> str:
    return f"{request}\n\n{_fence(code)}"


def _rename(maker: QuestionMaker, code: str, old: str) -> tuple[str, str]:
    new = fresh_name(maker.rng, code)
    return f"Rename `{old}` to `{new}`.", renamed(code, old, new)


def _declare(name: str, parameter: str) -> Message:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
    }
    sentence = name.replace("_", " ").capitalize()
    return {
        "type": "function",
        "function": {"name": name, "description": sentence, "parameters": schema},
    }


def _words() -> tuple[str, ...]:
    return _sections("words.txt", " ")


def _sections(name: str, separator: str = SEPARATOR) -> tuple[str, ...]:
    return read_sections(str(TEXTS / name), separator)


PROMPTS: Final = ("edit", "open")

Message = dict[str, Any]


def prompts(workload: str) -> tuple[str, ...]:
    return _sections(f"{workload}.txt")


def encode(tokenizer: Any, workload: str = "edit") -> list[tuple[int, ...]]:
    """Return the token ids of the prompts in `workload`.

    `tokenizer` is mlx-lm's wrapper.
    """
    encoded = []
    for prompt in prompts(workload):
        encoded.append(encode_chat(tokenizer, [{"role": "user", "content": prompt}]))
    return encoded


def encode_chat(
    tokenizer: Any, messages: Sequence[Message], **template_arguments: Any
) -> tuple[int, ...]:
    """Return the token ids of a conversation with its generation prompt.

    Without a chat template, the texts are joined by blank lines.
    """
    if not tokenizer.has_chat_template:
        text = "\n\n".join(message["content"] for message in messages)
        return tuple(tokenizer.encode(text))
    return tuple(
        tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **template_arguments,
        )
    )
