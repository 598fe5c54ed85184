"""What the bench asks a model.

`edit`: to repeat or to change a short function; most of the answer stands in the question, drafts are mostly right.
`open`: questions whose answers have no model in the prompt; this is where sampling draws apart draft and target.
"""

from __future__ import annotations

from typing import Any, Final

_CLAMP: Final = """\
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value
"""

_COUNT: Final = """\
def count_words(path):
    counts = {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1
    return counts
"""

_MERGE: Final = """\
def merge(left, right):
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    result.extend(left[i:])
    result.extend(right[j:])
    return result
"""

_STACK: Final = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("empty")
        return self.items.pop()
"""

_PARSE: Final = """\
def parse_header(line):
    name, _, value = line.partition(":")
    name = name.strip().lower()
    if not name:
        raise ValueError("no name")
    return name, value.strip()
"""

_RETRY: Final = """\
def retry(task, attempts=3):
    for attempt in range(attempts):
        try:
            return task()
        except OSError as error:
            last = error
    raise last
"""

EDIT: Final = tuple(
    f"{request}\n```python\n{code}```"
    for request, code in (
        ("Repeat this code exactly.", _MERGE),
        ("Rename `counts` to `total`.", _COUNT),
        ("Repeat this code.", _STACK),
        ("Rename `attempt` to `step`.", _RETRY),
        ("Copy this function.", _PARSE),
        ("Rename `value` to `number`.", _CLAMP),
        ("Rename the function to `join`.", _MERGE),
        ("Return the code unchanged.", _COUNT),
        ("Change the number 3 to 7.", _RETRY),
        ("Rename `items` to `data`.", _STACK),
        ("Repeat this code exactly.", _CLAMP),
        ('Replace the text "no name" with "missing".', _PARSE),
        ("Rename `result` to `output`.", _MERGE),
        ("Copy this function.", _RETRY),
        ("Rename `line` to `text`.", _COUNT),
        ("Repeat the code exactly as it is.", _PARSE),
    )
)

OPEN: Final = (
    "Write a function that counts the lines of a file.",
    "Explain what a stack is.",
    "Write a class for a queue with push and pop.",
    "What does a cache do?",
    "Write a function that sorts a list of numbers.",
    "How do I open a file and read it?",
    "Write a function that checks whether a word reads the same backwards.",
    "Tell me about the sea.",
    "Write a test for a function that adds two numbers.",
    "What is the difference between a list and a tuple?",
    "Write a function that joins two dictionaries.",
    "Describe a morning in a town.",
    "Write a loop that prints the numbers from 1 to 10.",
    "Why is the sky blue?",
    "Write a class for a timer.",
    "How does a search in a sorted list work?",
)

WORKLOADS: Final = {"edit": EDIT, "open": OPEN}


def encode(tokenizer: Any, workload: str = "edit") -> list[tuple[int, ...]]:
    """A workload's prompts as token ids: through the chat template where there is one. Takes mlx-lm's wrapper."""
    prompts = WORKLOADS[workload]
    if not tokenizer.has_chat_template:
        return [tuple(tokenizer.encode(prompt)) for prompt in prompts]
    return [
        tuple(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        )
        for prompt in prompts
    ]
