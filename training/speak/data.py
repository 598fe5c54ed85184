"""``python -m training.speak.data``: token ids of requests and of documents, for a synthesis.

Requests are made of the parts in requests.txt, and of functions and passages from documents:
Python's standard library and its documentation, manual pages, licences and copyright notices, as
they are installed on this machine. One request in fifty is held out.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import random
import re
import subprocess
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

REQUESTS = Path(__file__).with_name("requests.txt")
KINDS = ("chat", "prose", "list", "code", "edit")
SHARES = (30, 20, 14, 20, 16)
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
OPENING = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
USER_HEADER, ASSISTANT_HEADER = "\n<|im_start|>user\n", "\n<|im_start|>assistant\n"
END = "<|im_end|>"
HELD_OUT_OF = 50
CHARACTERS = {"code": 4_500_000, "topics": 600_000, "manuals": 1_000_000, "licences": 900_000}
FUNCTION_LINES = range(3, 22)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.speak.data", description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=20000)
    options = parser.parse_args()
    rng = random.Random(0)
    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    modules = list(limited(library(rng), CHARACTERS["code"]))
    documents = [
        *modules,
        *limited(topics(), CHARACTERS["topics"]),
        *limited(manuals(rng), CHARACTERS["manuals"]),
        *limited(licences(rng), CHARACTERS["licences"]),
    ]
    functions = [code for text in modules for code in functions_of(text)]
    passages = [text for document in documents[len(modules) :] for text in paragraphs(document)]
    parts = read_parts()
    parts["function"], parts["passage"] = functions, passages
    texts: dict[str, int] = {}
    while len(texts) < options.requests:
        kind = rng.choices(range(len(KINDS)), SHARES)[0]
        texts.setdefault(filled(rng.choice(parts[KINDS[kind]]), parts, rng), kind)
    whole = [f"{OPENING}{text}{END}{ASSISTANT_HEADER}" for text in texts]
    encoded = [item.ids for item in tokenizer.encode_batch(whole)]
    rng.shuffle(documents)
    flat = [[*item.ids, 0] for item in tokenizer.encode_batch(documents)]
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        options.out / "data.npz",
        prompts=np.concatenate([np.array(ids, np.uint16) for ids in encoded]),
        starts=np.cumsum([0, *map(len, encoded)]).astype(np.int64),
        kinds=np.array([*texts.values()], np.uint8),
        held_out=np.array([zlib.crc32(t.encode()) % HELD_OUT_OF == 0 for t in texts]),
        documents=np.concatenate([np.array(ids, np.uint16) for ids in flat]),
    )
    about = {
        "kinds": KINDS,
        "opening": tokenizer.encode(OPENING).ids,
        "user_header": tokenizer.encode(USER_HEADER).ids,
        "assistant_header": tokenizer.encode(ASSISTANT_HEADER).ids,
    }
    (options.out / "data.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    sizes = sum(map(len, encoded)), sum(map(len, flat))
    print(f"{len(texts)} requests of {sizes[0]} tokens, documents of {sizes[1]} tokens")


def read_parts() -> dict[str, list[str]]:
    """Return templates by kind, and what may stand in them by name."""
    parts: dict[str, list[str]] = {}
    name = ""
    for line in REQUESTS.read_text(encoding="utf-8").splitlines():
        if header := re.fullmatch(r"\[=?(\w+)\]", line):
            name = header[1]
            parts[name] = []
        elif line and not line.startswith("#"):
            parts[name] += line.split("|") if name not in KINDS else [line]
    return parts


def filled(template: str, parts: dict[str, list[str]], rng: random.Random) -> str:
    text = template.replace("\\n", "\n")
    return re.sub(r"\{(\w+)\}", lambda found: rng.choice(parts[found[1]]), text)


def limited(texts: Iterator[str], characters: int) -> Iterator[str]:
    """Yield texts until they have so many characters."""
    for text in texts:
        if characters <= 0:
            return
        yield text[:60_000]
        characters -= min(len(text), 60_000)


def library(rng: random.Random) -> Iterator[str]:
    """Yield modules of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = [file for file in folder.rglob("*.py") if "site-packages" not in file.parts]
    files = sorted(f for f in files if not {"test", "tests", "idlelib"} & set(f.parts))
    files = [f for f in files if f.name != "topics.py" and "encodings" not in f.parts]
    rng.shuffle(files)
    for file in files:
        yield file.read_text(encoding="utf-8", errors="ignore")


def topics() -> Iterator[str]:
    """Yield chapters of the language's documentation, which the library has as texts."""
    from pydoc_data.topics import topics as chapters  # noqa: PLC0415 — large

    yield from chapters.values()


def manuals(rng: random.Random) -> Iterator[str]:
    """Yield manual pages in English, as `man` shows them."""
    files = sorted(Path("/usr/share/man/man1").glob("*.gz")) if has("man") else []
    files = [file for file in files if not file.name.startswith("gcloud")]  # thousands, all alike
    rng.shuffle(files)
    for file in files:
        if gzip.decompress(file.read_bytes()).startswith(b".so"):
            continue
        shown = subprocess.run(
            ["man", "--no-justification", "--no-hyphenation", "-l", str(file)],
            env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
        )
        if shown.returncode == 0:
            yield re.sub(r"^ {7}", "", re.sub(r".\x08", "", shown.stdout), flags=re.MULTILINE)


def has(command: str) -> bool:
    return subprocess.run(["which", command], capture_output=True, check=False).returncode == 0


def licences(rng: random.Random) -> Iterator[str]:
    """Yield licences, and copyright notices of packages."""
    files = [f for f in sorted(Path("/usr/share/common-licenses").glob("*")) if not f.is_symlink()]
    notices = sorted(Path("/usr/share/doc").glob("*/copyright"))
    rng.shuffle(notices)
    for file in [*files, *notices]:
        yield file.read_text(encoding="utf-8", errors="ignore")


def functions_of(module: str) -> Iterator[str]:
    """Yield short functions of a module."""
    try:
        nodes = [*ast.walk(ast.parse(module))]
    except (SyntaxError, ValueError):
        return
    lines = module.splitlines()
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            code = lines[node.lineno - 1 : node.end_lineno]
            if len(code) in FUNCTION_LINES and code[0].startswith("def "):
                yield "\n".join(code)


def paragraphs(document: str) -> Iterator[str]:
    """Yield paragraphs of prose of a document."""
    for paragraph in re.split(r"\n\s*\n", document):
        text = re.sub(r"\s+", " ", paragraph).strip()
        letters = sum(char.isalpha() or char == " " for char in text)
        if 200 <= len(text) <= 800 and letters > 0.93 * len(text):
            yield text


if __name__ == "__main__":
    main()
