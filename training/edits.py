"""Edits of a short function whose request says exactly what the result is.

Each edit is a function ``(rng, code) -> Edit | None``; None means that it does not apply to this
code. Results keep most of the code, so the conversation so far predicts most of the answer.
"""

from __future__ import annotations

import ast
import io
import keyword
import random
import re
import tokenize
from collections.abc import Callable
from dataclasses import dataclass

WORDS = (
    "value item result data node total count index key name text line path buffer config user "
    "first last left right size width height token model cache state event queue stack table row "
    "column field entry record message request response client server worker task job step page "
    "file folder source target output input level score weight label title color shape point "
    "angle speed time date year month day hour limit offset start stop begin end head tail parent "
    "child root leaf branch tree graph edge link chain block chunk part piece group batch list "
    "array matrix vector scalar number digit letter word phrase string byte bit flag mode kind "
    "type status error warning option"
).split()
SIGNATURE = re.compile(r"^((?:async )?def )(\w+)\(([^()]*)\)( -> [^:]+)?:$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Edit:
    """The request of the user, and the code that answers it."""

    request: str
    result: str


def new_name(rng: random.Random) -> str:
    """Return an identifier: one or two common words, or sometimes random letters."""
    if rng.random() < 0.2:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 5)))
    return "_".join(rng.sample(WORDS, rng.choice((1, 1, 2))))


def identifiers(code: str) -> list[str]:
    """Return the names of variables, arguments and functions in ``code`` that may be renamed."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # an earlier edit may have cut a statement in two
        return []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return sorted(name for name in names if name not in ("self", "cls"))


def replace_name(code: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new, code)


def scramble(rng: random.Random, code: str) -> str:
    """Return ``code`` with some names replaced, so that it cannot be recited from memory."""
    names = identifiers(code)
    for old in rng.sample(names, min(len(names), rng.randint(1, 4))):
        new = new_name(rng)
        if not keyword.iskeyword(new):
            code = replace_name(code, old, new)
    return code


def repeat(rng: random.Random, code: str) -> Edit | None:
    phrases = (
        "Repeat this code exactly.",
        "Repeat this code.",
        "Print this file again without changes.",
        "Copy this function.",
        "Return the code unchanged.",
        "Show me the same code again.",
        "Write this code out again, word for word.",
        "Repeat the code exactly as it is.",
    )
    return Edit(rng.choice(phrases), code)


def rename(rng: random.Random, code: str) -> Edit | None:
    names = identifiers(code)
    new = new_name(rng)
    if not names or new in names or keyword.iskeyword(new):
        return None
    old = rng.choice(names)
    phrases = (
        f"Rename `{old}` to `{new}`.",
        f"Rename {old} to {new}.",
        f"Rename the variable `{old}` to `{new}`.",
        f"Change the name `{old}` to `{new}` everywhere.",
        f"Please rename `{old}` to `{new}` and return the whole code.",
        f"Replace `{old}` with `{new}`.",
    )
    return Edit(rng.choice(phrases), replace_name(code, old, new))


def rename_function(rng: random.Random, code: str) -> Edit | None:
    match = SIGNATURE.search(code)
    new = new_name(rng)
    if match is None or keyword.iskeyword(new):
        return None
    phrases = (
        f"Rename the function to `{new}`.",
        f"Rename the function `{match[2]}` to `{new}`.",
        f"Call the function {new} instead.",
    )
    return Edit(rng.choice(phrases), replace_name(code, match[2], new))


def change_number(rng: random.Random, code: str) -> Edit | None:
    numbers = sorted(set(re.findall(r"(?<![\w.])\d+(?![\w.])", code)))
    if not numbers:
        return None
    old, new = (
        rng.choice(numbers),
        str(rng.choice((rng.randint(0, 9), rng.randint(10, 99), rng.randint(100, 999)))),
    )
    phrases = (
        f"Change the number {old} to {new}.",
        f"Replace {old} by {new}.",
        f"Change {old} to {new}.",
        f"Use {new} instead of {old}.",
    )
    return Edit(rng.choice(phrases), re.sub(rf"(?<![\w.]){old}(?![\w.])", new, code))


def change_string(rng: random.Random, code: str) -> Edit | None:
    strings = sorted(set(re.findall(r"'([A-Za-z][\w ]{1,20})'|\"([A-Za-z][\w ]{1,20})\"", code)))
    if not strings:
        return None
    old = "".join(rng.choice(strings))
    new = rng.choice((new_name(rng), " ".join(rng.sample(WORDS, 2))))
    phrases = (f'Change the string "{old}" to "{new}".', f'Replace the text "{old}" with "{new}".')
    return Edit(
        rng.choice(phrases), re.sub(rf"(['\"]){re.escape(old)}\1", rf"\g<1>{new}\g<1>", code)
    )


def remove_comments(rng: random.Random, code: str) -> Edit | None:
    if "#" not in code:
        return None
    lines = code.split("\n")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code + "\n").readline))
    except (tokenize.TokenError, SyntaxError):
        return None
    comments = {
        token.start[0] - 1: token.start[1] for token in tokens if token.type == tokenize.COMMENT
    }
    cut = [
        (line[: comments[at]].rstrip() if at in comments else line) for at, line in enumerate(lines)
    ]
    result = "\n".join(line for at, line in enumerate(cut) if line or not lines[at])
    return Edit(
        rng.choice(
            ("Remove the comments.", "Delete all comments.", "Strip the comments from this.")
        ),
        result,
    )


def add_docstring(rng: random.Random, code: str) -> Edit | None:
    match = SIGNATURE.search(code)
    if match is None or match.end() >= len(code) or '"""' in code:
        return None
    words = [word for word in re.split(r"_+", match[2]) if word]
    if rng.random() < 0.5 or not words:
        sentence = " ".join(rng.sample(WORDS, rng.randint(2, 4))).capitalize() + "."
        request = rng.choice((f'Add the docstring "{sentence}"', f"Add this docstring: {sentence}"))
    else:
        sentence = " ".join(words).capitalize() + "."
        request = rng.choice(
            ("Add a docstring.", "Add a docstring to this function.", "Document this function.")
        )
    return Edit(request, code[: match.end()] + f'\n    """{sentence}"""' + code[match.end() :])


def add_comment(rng: random.Random, code: str) -> Edit | None:
    text = " ".join(rng.sample(WORDS, rng.randint(1, 4)))
    phrases = (
        f"Add the comment `# {text}` at the top.",
        f'Put a comment "{text}" on the first line.',
    )
    return Edit(rng.choice(phrases), f"# {text}\n{code}")


def add_hints(rng: random.Random, code: str) -> Edit | None:
    match = SIGNATURE.search(code)
    if match is None or not match[3] or ":" in match[3] or "\n" in match[3] or match[4]:
        return None
    hinted = [_hint(argument.strip()) for argument in match[3].split(",")]
    result = "None" if "return " not in code else "Any"
    line = f"{match[1]}{match[2]}({', '.join(hinted)}) -> {result}:"
    phrases = ("Add type hints.", "Add type hints to this function.", "Annotate the arguments.")
    return Edit(rng.choice(phrases), code[: match.start()] + line + code[match.end() :])


def _hint(argument: str) -> str:
    name, equals, default = argument.partition("=")
    if name in ("self", "cls", "/", "", "*") or name.startswith("*"):
        return argument
    if not equals:
        return f"{name}: Any"
    return f"{name}: {_type_of(default)} = {default}"


def _type_of(default: str) -> str:
    """Return the type that a default value stands for, as far as its text says."""
    if default[:1] in ('"', "'"):
        return "str"
    if default in ("True", "False"):
        return "bool"
    return "int" if default.isdigit() else "Any"


def add_decorator(rng: random.Random, code: str) -> Edit | None:
    name = rng.choice(("cache", "staticmethod", "property", "override", new_name(rng)))
    phrases = (f"Add the decorator `@{name}`.", f"Decorate the function with @{name}.")
    return Edit(rng.choice(phrases), f"@{name}\n{code}")


def make_async(rng: random.Random, code: str) -> Edit | None:
    if not code.startswith("def "):
        return None
    return Edit(
        rng.choice(("Make the function async.", "Turn this into an async function.")),
        "async " + code,
    )


def add_last_line(rng: random.Random, code: str) -> Edit | None:
    line = f"print({new_name(rng)})"
    return Edit(
        rng.choice((f"Add `{line}` at the end.", f"Append the line {line}")), f"{code}\n    {line}"
    )


def delete_last_line(rng: random.Random, code: str) -> Edit | None:
    if code.count("\n") < 2:
        return None
    return Edit(
        rng.choice(("Delete the last line.", "Remove the last line.")), code.rsplit("\n", 1)[0]
    )


EDITS: tuple[tuple[Callable[[random.Random, str], Edit | None], int], ...] = (
    (repeat, 26),
    (rename, 26),
    (rename_function, 6),
    (change_number, 8),
    (change_string, 5),
    (remove_comments, 5),
    (add_docstring, 6),
    (add_comment, 4),
    (add_hints, 5),
    (add_decorator, 3),
    (make_async, 2),
    (add_last_line, 2),
    (delete_last_line, 2),
)


def random_edit(rng: random.Random, code: str) -> Edit:
    """Return an edit that applies to ``code``, drawn by weight."""
    kinds, weights = zip(*EDITS, strict=True)
    while True:
        edit = rng.choices(kinds, weights)[0](rng, code)
        if edit is not None:
            return edit
