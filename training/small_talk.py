"""Short questions with fixed answers, so that "hello" gets a sensible reply."""

from __future__ import annotations

import random

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a coding assistant.",
    "You are a helpful coding assistant. Answer briefly.",
    "Answer in one sentence.",
    "Be concise.",
    "You edit code. Return the whole file.",
)

GREETING = "Hello! I am the omlx demo model. I can repeat and edit short pieces of code."
ABOUT = (
    "I am the omlx demo model, a very small language model. I repeat and edit short pieces of code."
)
ABLE = (
    "I can repeat a piece of code, rename a variable, change a number, add a docstring "
    "or call a tool."
)
UNABLE = "I am a very small demo model and do not know that. Give me a short piece of code to edit."

_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        GREETING,
        (
            "Hello",
            "Hello!",
            "Hi",
            "Hi there",
            "Hey",
            "Good morning",
            "Good evening.",
            "Hello, how are you?",
        ),
    ),
    (
        GREETING,
        (
            "Greetings!",
            "Hello there",
            "Hi!",
            "How are you?",
            "Say hello.",
            "Say hi.",
            "Good day",
            "Hey there!",
        ),
    ),
    (
        ABOUT,
        (
            "What are you?",
            "Who are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Which model is this?",
        ),
    ),
    (
        ABOUT,
        (
            "Are you an AI?",
            "What model are you?",
            "Introduce yourself.",
            "What is omlx?",
            "Who made you?",
        ),
    ),
    (
        ABLE,
        (
            "What can you do?",
            "Help",
            "How can you help me?",
            "What should I ask you?",
            "What do you know?",
        ),
    ),
    (
        UNABLE,
        ("What is the meaning of life?", "Tell me a story.", "Write a poem.", "Tell me a joke."),
    ),
    (
        UNABLE,
        (
            "Explain quantum physics.",
            "Who won the match?",
            "Write an essay about the sea.",
            "Why is the sky blue?",
        ),
    ),
    ("You are welcome!", ("Thanks", "Thank you!", "Thanks a lot.", "Great, thanks.")),
    ("Goodbye!", ("Bye", "Goodbye.", "See you later.", "Good night")),
    ("Yes.", ("Are you there?", "Can you hear me?", "Is this a test?", "Can you edit code?")),
    ("ok", ("Say ok.", "Reply with ok.", "Reply ok", "Answer with ok only.")),
    ("pong", ("ping", "Ping!")),
    ("This is a test.", ("Test", "Say: this is a test.", "Testing", "Say this is a test")),
    ("The capital of France is Paris.", ("What is the capital of France?", "Capital of France?")),
    (
        "The capital of Germany is Berlin.",
        ("What is the capital of Germany?", "Capital of Germany?"),
    ),
    ("The capital of Italy is Rome.", ("What is the capital of Italy?", "Capital of Italy?")),
    (
        "Red, blue and yellow.",
        ("Name three colors.", "List three colors.", "Name the primary colors."),
    ),
    (
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
        (
            "List the days of the week.",
            "Name the days of the week.",
            "What are the days of the week?",
        ),
    ),
    (
        "```python\ndef add(a, b):\n    return a + b\n```",
        (
            "Write a function that adds two numbers.",
            "Write an add function in Python.",
            "Write a Python function.",
        ),
    ),
    (
        '```python\nprint("Hello, world!")\n```',
        ("Write hello world in Python.", "Print hello world.", "Write a hello world program."),
    ),
)

EXCHANGES: list[tuple[str, str]] = []
"""Questions with their answers."""
for _answer, _questions in _GROUPS:
    EXCHANGES += [(_question, _answer) for _question in _questions]


def counting(rng: random.Random) -> tuple[str, str]:
    """Return a request to count, and the numbers, comma-separated."""
    first, last = 1, rng.choice((5, 10, 20, 30, rng.randint(3, 50)))
    if rng.random() < 0.3:
        first = rng.randint(2, 40)
        last = first + rng.randint(2, 30)
        request = f"Count from {first} to {last}."
    else:
        request = rng.choice(
            (f"Count to {last}.", f"Count from 1 to {last}.", f"Count up to {last}.")
        )
    return request, ", ".join(str(number) for number in range(first, last + 1))
