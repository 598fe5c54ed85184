"""What `omlx bench spec` asks: from a word-for-word repeat, where nearly all can be foreseen, to no pattern.

Every prompt is made by a generator seeded with its trial: which snippets, which names, which numbers. So no trial
repeats another, and two runs of the bench ask the same. The texts under `texts/` were written for this; none of them
stands in Python's standard library, from which the bundled models learned.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

TEXTS: Final = Path(__file__).resolve().parent / "texts"
SLACK: Final = 48
"""Tokens that an answer may be longer than what it should repeat."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation to answer. `longest` bounds the answer in tokens; `ends`: it may end earlier, at a stop token."""

    messages: list[Message]
    longest: int
    tools: list[Message] | None = None
    thinks: bool = False
    temperature: float = 0.0
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Maker:
    """What questions are made with: a seeded generator, the tokens that prompt and answer may come to, the counting."""

    rng: random.Random
    context: int
    count: Callable[[str], int]

    def file(self, share: float) -> str:
        """Functions that fill `share` of the context, with names and numbers of their own."""
        functions = _texts("functions.txt", "\n\n\n")
        chosen: list[str] = []
        for function in self.rng.sample(functions, len(functions)):
            longer = [*chosen, vary(self.rng, function)]
            if self.count("\n\n\n".join(longer)) <= share * self.context:
                chosen = longer
        return "\n\n\n".join(chosen or [vary(self.rng, min(functions, key=len))])

    def words(self, count: int) -> str:
        return " ".join(self.rng.choices(_texts("words.txt", " "), k=count))

    def room(self, text: str) -> int:
        return self.count(text) + SLACK


@dataclass(frozen=True, slots=True)
class Workload:
    """`ask` makes one question; `repeats` of them make a trial, where answers are short. `random_draft`: what drafts
    here was never trained."""

    name: str
    ask: Callable[[Maker], Question]
    repeats: int = 1
    random_draft: bool = False


def questions(
    workload: Workload, trial: int, rows: int, context: int, count: Callable[[str], int]
) -> list[Question]:
    """The questions of one trial, `rows` at a time, for `workload.repeats` times."""
    rng = random.Random(f"{workload.name} {trial} {context}")
    maker = Maker(rng, context, count)
    return [workload.ask(maker) for _ in range(workload.repeats * rows)]


def vary(rng: random.Random, code: str) -> str:
    """The same code with about half of its names and all of its larger numbers changed."""
    for name in names(code):
        if rng.random() < 0.5:
            code = renamed(code, name, fresh_name(rng, code))
    return re.sub(
        r"(?<![\w.])\d{2,}(?!\w)", lambda found: str(rng.randint(10, 10 ** len(found[0]) - 1)), code
    )


def names(code: str) -> list[str]:
    """Variables and arguments that can be renamed without a second thought."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return sorted(found - {"self", "_"})


def renamed(code: str, old: str, new: str) -> str:
    return re.sub(rf"\b{old}\b", new, code)


def fresh_name(rng: random.Random, code: str) -> str:
    while (name := rng.choice(_texts("words.txt", " "))) in code:
        pass
    return name


def uses(code: str, name: str) -> int:
    return len(re.findall(rf"\b{name}\b", code))


def _verbatim(maker: Maker) -> Question:
    """A file to repeat word for word."""
    code = maker.file(0.45)
    request = maker.rng.choice(
        ("Repeat this code exactly.", "Copy this code.", "Return the code unchanged.")
    )
    return Question([_user(_shown(request, code))], maker.room(code))


def _small_edit(maker: Maker) -> Question:
    """One name that is used two to four times."""
    code = maker.file(0.45)
    rare = [name for name in names(code) if 2 <= uses(code, name) <= 4] or names(code)
    old = maker.rng.choice(rare)
    return Question([_user(_shown(_rename(maker, code, old)[0], code))], maker.room(code))


def _heavy_edit(maker: Maker) -> Question:
    """The three names that are used most."""
    code = maker.file(0.42)
    often = sorted(names(code), key=lambda name: -uses(code, name))[:3]
    requests = [_rename(maker, code, old)[0] for old in often]
    return Question([_user(_shown(" ".join(requests), code))], maker.room(code))


def _warm_coding(maker: Maker) -> Question:
    """The second edit of one file; the first question and its answer stand in the conversation."""
    code = maker.file(0.29)
    chosen = maker.rng.sample(names(code), 2)
    first, edited = _rename(maker, code, chosen[0])
    second, _ = _rename(maker, edited, chosen[1])
    said = [_user(_shown(first, code)), _assistant(_fence(edited)), _user(second)]
    return Question(said, maker.room(edited))


def _tools(maker: Maker) -> Question:
    """A tool to call, or JSON to write again."""
    rng = maker.rng
    if rng.random() < 0.5:
        subject = maker.words(rng.randint(2, 5))
        asked = rng.choice(
            ("Search for {}.", "Search the web for {}.", "Look up {} on the web.")
        ).format(subject)
        return Question(
            [_user(asked)],
            96,
            tools=[_declare("web_search", "query"), _declare("read_file", "path")],
        )
    record = {
        name: rng.choice((rng.randint(10, 999), maker.words(2))) for name in maker.words(6).split()
    }
    text = json.dumps([record, {**record, "count": rng.randint(100, 999)}])
    return Question([_user(f"Repeat this: {text}")], maker.room(text))


def _reasoning(maker: Maker) -> Question:
    """A sum, thought out aloud."""
    a, b = maker.rng.randrange(100, 1000), maker.rng.randrange(100, 1000)
    return Question([_user(f"What is {a} + {b}?")], 160, thinks=True)


def _prose(maker: Maker) -> Question:
    """Sampled, and not ended by a stop token: a small model would say goodbye too soon to be measured."""
    text = maker.rng.choice(_texts("prose.txt", "\n\n"))
    asked = f"Continue this story about {maker.words(3)}.\n\n{text}"
    return Question([_user(asked)], maker.context * 2 // 5, temperature=0.9, ends=False)


def _hostile(maker: Maker) -> Question:
    """Words drawn at random, read and written at a temperature at which little comes twice."""
    asked = f"Write words that are not among these: {maker.words(maker.context // 12)}"
    return Question([_user(asked)], maker.context * 2 // 5, temperature=1.5, ends=False)


WORKLOADS: Final = (
    Workload("verbatim", _verbatim),
    Workload("small edit", _small_edit),
    Workload("heavy edit", _heavy_edit),
    Workload("warm coding", _warm_coding),
    Workload("tools", _tools, repeats=4),
    Workload("reasoning", _reasoning, repeats=2),
    Workload("prose", _prose),
    Workload("hostile", _hostile, random_draft=True),
)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _fence(code: str) -> str:
    return f"```python\n{code}\n```"


def _shown(request: str, code: str) -> str:
    return f"{request}\n\n{_fence(code)}"


def _rename(maker: Maker, code: str, old: str) -> tuple[str, str]:
    """The request and its result."""
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


@cache
def _texts(name: str, separator: str) -> list[str]:
    return (TEXTS / name).read_text(encoding="utf-8").strip().split(separator)
