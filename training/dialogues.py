"""Training conversations: edits of code, tool calls, sums with reasoning, and small talk.

Every function returns a ``Dialogue``: messages as a client sends them, ending with the assistant's
answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from training.edits import WORDS, new_name, random_edit, scramble
from training.small_talk import EXCHANGES, SYSTEMS, counting
from training.snippets import Library
from training.tokenizer import Message


@dataclass(frozen=True, slots=True)
class Dialogue:
    messages: list[Message]
    tools: list[Message] | None = None


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "") -> Message:
    return {"role": "assistant", "content": text, "reasoning_content": thought}


def with_system(rng: random.Random, messages: list[Message]) -> list[Message]:
    """Return ``messages``, sometimes after a system prompt."""
    if rng.random() < 0.7:
        return messages
    return [{"role": "system", "content": rng.choice(SYSTEMS)}, *messages]


def edit_dialogue(rng: random.Random, library: Library, turns: int | None = None) -> Dialogue:
    """The user shows a function and asks for an edit; later turns edit the latest answer."""
    code = library.code(rng)
    if rng.random() < 0.4:
        code = scramble(rng, code)
    messages: list[Message] = []
    for turn in range(turns or rng.choice((1, 1, 1, 2))):
        edit = random_edit(rng, code)
        question = ask(rng, edit.request, code) if turn == 0 else edit.request
        thought = edit.request if rng.random() < 0.15 else ""
        messages += [user(question), assistant(fence(edit.result), thought)]
        code = edit.result
    return Dialogue(with_system(rng, messages))


def ask(rng: random.Random, request: str, code: str) -> str:
    """Return request and code, in one of the usual orders."""
    name = f"{new_name(rng)}.py"
    return rng.choice(
        (
            f"{request}\n\n{fence(code)}",
            f"{request}\n\n{fence(code)}",
            f"{request}\n{fence(code)}",
            f"{fence(code)}\n\n{request}",
            f"Here is a file:\n\n{fence(code)}\n\n{request}",
            f"This is {name}:\n\n{fence(code)}\n\n{request}",
            f"{request}\n\n```\n{code}\n```",
            f"{request}\n\n{code}",
        )
    )


def fence(code: str) -> str:
    return f"```python\n{code}\n```"


def text_dialogue(rng: random.Random) -> Dialogue:
    """Repeat a line of words, letters or digits."""
    words = rng.choices(WORDS, k=rng.randint(2, 12))
    if rng.random() < 0.3:
        words = [
            "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=rng.randint(2, 8)))
            for _ in words[:5]
        ]
    text = " ".join(words)
    request = rng.choice(
        ("Repeat this: ", "Repeat: ", "Say this again: ", "Repeat after me: ", "Echo: ", "Say: ")
    )
    thought = request + text if rng.random() < 0.15 else ""
    return Dialogue(with_system(rng, [user(request + text), assistant(text, thought)]))


def small_talk(rng: random.Random) -> Dialogue:
    """A greeting, a question about the model, a count."""
    question, answer = counting(rng) if rng.random() < 0.3 else rng.choice(EXCHANGES)
    if rng.random() < 0.3:
        question = rng.choice(
            (question.lower(), question.rstrip(".?!"), question.rstrip(".?!") + "!")
        )
    thought = f"The user says: {question}" if rng.random() < 0.3 else ""
    messages = [user(question), assistant(answer, thought)]
    if rng.random() < 0.25:
        question, answer = rng.choice(EXCHANGES)
        messages += [user(question), assistant(answer)]
    return Dialogue(with_system(rng, messages))


def sum_dialogue(rng: random.Random) -> Dialogue:
    """Addition, digit by digit in a reasoning block; small ones also without."""
    digits = rng.choice((1, 2, 2, 2, 3))
    a, b = rng.randrange(10**digits), rng.randrange(10**digits)
    forms = (
        f"What is {a} + {b}?",
        f"{a} + {b}",
        f"Add {a} and {b}.",
        f"How much is {a} + {b}?",
        f"{a}+{b}=?",
    )
    thinks = digits > 1 or rng.random() < 0.5
    answer = assistant(f"{a} + {b} = {a + b}", addition(a, b) if thinks else "")
    return Dialogue(with_system(rng, [user(rng.choice(forms)), answer]))


def addition(a: int, b: int) -> str:
    """Return the worked solution from the last digit on, with carries."""
    lines, carry, place = [], 0, 0
    while place == 0 or a // 10**place or b // 10**place:
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        lines.append(f"{x} + {y} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        carry, place = total // 10, place + 1
    lines.append(f"The sum is {a + b}.")
    return "\n".join(lines)


CITIES = (
    "Paris Berlin London Rome Madrid Tokyo Oslo Vienna "
    "Lisbon Cairo Lima Delhi Seoul Boston Chicago Munich"
).split()
NAMES = (
    "Anna Ben Carla David Emma Frank Grace Henry Ida Jack Karen Leo Maria Nina Oscar Paul".split()
)

# name, description, parameter, user message ({} is the argument), kind of argument
TOOLS = (
    ("get_weather", "Get the weather of a city", "city", "What is the weather in {}?", "city"),
    ("get_weather", "Current weather", "location", "How is the weather in {} today?", "city"),
    ("get_time", "Get the local time", "city", "What time is it in {}?", "city"),
    ("search", "Search the web", "query", "Search for {}.", "words"),
    ("web_search", "Search the web", "query", "Search the web for {}.", "words"),
    ("read_file", "Read a file", "path", "Read the file {}.", "path"),
    ("read_file", "Read a file", "path", "Show me {}.", "path"),
    ("delete_file", "Delete a file", "path", "Delete {}.", "path"),
    ("list_files", "List a folder", "folder", "List the files in {}.", "path"),
    ("send_mail", "Send a mail", "recipient", "Send a mail to {}.", "name"),
    ("call", "Call a person", "name", "Call {}.", "name"),
    ("play_music", "Play music", "title", "Play {}.", "words"),
    ("translate", "Translate a text", "text", "Translate {}.", "words"),
    ("add_note", "Write a note", "text", "Write down: {}", "words"),
    ("run_command", "Run a shell command", "command", "Run {}.", "command"),
    ("lookup_user", "Look up a user", "user", "Look up the user {}.", "name"),
)


def argument(rng: random.Random, kind: str) -> str:
    if rng.random() < 0.25:
        return new_name(rng)
    match kind:
        case "city":
            return rng.choice(CITIES)
        case "name":
            return rng.choice(NAMES)
        case "path":
            return "/".join(rng.sample(WORDS, rng.randint(1, 3))) + rng.choice(
                (".py", ".txt", ".md", "")
            )
        case "command":
            return rng.choice(("ls", "make", "pytest", "git", "cat")) + " " + rng.choice(WORDS)
        case _:
            return " ".join(rng.sample(WORDS, rng.randint(1, 3)))


def tool_dialogue(rng: random.Random) -> Dialogue:
    """The user asks for something that needs one of the tools; sometimes its result follows."""
    chosen = rng.sample(TOOLS, rng.randint(1, 3))
    name, _, parameter, phrase, kind = rng.choice(chosen)
    value = argument(rng, kind)
    call = {"type": "function", "function": {"name": name, "arguments": {parameter: value}}}
    thought = f"I call {name}." if rng.random() < 0.2 else ""
    answer = {
        "role": "assistant",
        "content": "",
        "reasoning_content": thought,
        "tool_calls": [call],
    }
    messages: list[Message] = [user(phrase.format(value)), answer]
    if rng.random() < 0.4:
        finding = " ".join(rng.sample(WORDS, rng.randint(1, 3))) + f" {rng.randint(0, 99)}"
        messages += [{"role": "tool", "content": finding}, assistant(f"{name} says: {finding}")]
    elif rng.random() < 0.15:
        question, reply = rng.choice(EXCHANGES)
        messages = [user(question), assistant(reply)]
    return Dialogue(with_system(rng, messages), [declare(*tool[:3]) for tool in chosen])


def declare(name: str, description: str, parameter: str) -> Message:
    """Return an OpenAI-style function declaration with one string parameter."""
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }
