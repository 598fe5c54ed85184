"""What the bench asks a model: to repeat or to edit a short function. Most of the answer stands in the question."""

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

PROMPTS: Final = tuple(
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


def encode(tokenizer: Any) -> list[tuple[int, ...]]:
    """All prompts as token ids: through the chat template where the tokenizer has one. Takes mlx-lm's wrapper."""
    if not tokenizer.has_chat_template:
        return [tuple(tokenizer.encode(prompt)) for prompt in PROMPTS]
    return [
        tuple(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
        for prompt in PROMPTS
    ]
