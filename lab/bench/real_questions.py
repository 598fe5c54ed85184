"""Workloads for a model that speaks: what people and agents ask, of real texts.

Every question is seeded and none repeats another, as in `lab.bench.workloads`; none is among the
requests that SmolLM2's head was trained with (`training/speak/requests.txt`).
"""

from __future__ import annotations

from typing import Final

from lab.bench.workloads import WORKLOADS, Message, Question, QuestionMaker, Workload
from omlx.measure.texts import FUNCTION_SEPARATOR, TEXTS, read_sections

LONGEST: Final = 96
"""Tokens of an answer that does not end by itself."""

_SUBJECTS: Final = (
    "a lighthouse",
    "sourdough bread",
    "the tides",
    "a bicycle gear",
    "honeybees in winter",
    "the printing press",
    "a suspension bridge",
    "coral reefs",
    "the violin",
    "glaciers",
    "tea ceremonies",
    "a steam engine",
    "maps",
    "the moon's phases",
    "beavers",
    "stained glass",
)
_CHAT: Final = (
    "Can you explain how {} works, as you would to a curious child?",
    "What should I know about {} before I talk to an expert?",
    "Why do people find {} interesting?",
    "Give me some advice on how to learn more about {}.",
)
_PROSE: Final = (
    "Write a short story in which {} plays a part.",
    "Describe {} in the style of an old travel book.",
    "Write a letter to a friend about {}.",
)
_LIST: Final = (
    "List ten facts about {}, numbered.",
    "Make a list of eight words that come to mind with {}, each with a short reason.",
    "List the steps by which one would make a museum room about {}.",
)
_CODE: Final = (
    "Write a Python function `{0}` that takes a list of {1} and returns those longer than {2}.",
    "Write a Python class `{0}` with a method that adds {1} and one that counts them, up to {2}.",
    "Write a Python script that reads {1} from a file `{0}.txt` and prints the first {2}.",
)


def _chat(maker: QuestionMaker) -> Question:
    """Answer a question."""
    return _asked(maker, _CHAT)


def _story(maker: QuestionMaker) -> Question:
    """Tell a story."""
    return _asked(maker, _PROSE)


def _list(maker: QuestionMaker) -> Question:
    """Make a list."""
    return _asked(maker, _LIST)


def _code(maker: QuestionMaker) -> Question:
    """Write a program."""
    names = maker.words(2).split()
    request = maker.rng.choice(_CODE).format(*names, maker.rng.randint(10, 999))
    return Question([_says("user", request)], LONGEST)


def _agent(maker: QuestionMaker) -> Question:
    """Use what two tools returned: a file, and a list of its functions."""
    functions = maker.rng.sample(read_sections(TEXTS / "functions.txt", FUNCTION_SEPARATOR), 2)
    name = maker.words(1)
    listing = "\n".join(text.partition("\n")[0] for text in functions)
    code = "\n\n\n".join(functions)
    messages = [
        _says("system", "You are a coding assistant with the tools grep and read_file."),
        _says("user", f"Which functions are in {name}.py?"),
        _says("assistant", f'I will search: grep "def " {name}.py'),
        _says("user", f"Result of grep:\n{listing}"),
        _says("assistant", f"I will read the file: read_file {name}.py"),
        _says("user", f"Result of read_file:\n```python\n{code}\n```"),
        _says("user", "Show the first function again, and explain it."),
    ]
    return Question(messages, LONGEST)


def _asked(maker: QuestionMaker, requests: tuple[str, ...]) -> Question:
    subject = f"{maker.rng.choice(_SUBJECTS)} ({maker.words(1)})"  # a word more: none repeats
    return Question([_says("user", maker.rng.choice(requests).format(subject))], LONGEST)


def _says(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _mixed(maker: QuestionMaker) -> Question:
    """Continue a list of 5 to 60 words."""
    words = maker.words(maker.rng.choice((5, 15, 30, 60)))
    return Question([_says("user", f"Continue this list of words: {words}")], LONGEST)


_EDIT: Final = next(workload for workload in WORKLOADS if workload.name == "small edit")
REAL: Final = (
    Workload("edit", _EDIT.ask),
    Workload("agent", _agent),
    Workload("code", _code),
    Workload("list", _list),
    Workload("chat", _chat),
    Workload("prose", _story),
)
WORDS: Final = Workload("words", _mixed)
"""Prompts of mixed lengths that no drafter helps with."""
