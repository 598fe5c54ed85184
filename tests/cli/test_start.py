"""What a start does without, and what commands advise: similar names, values, a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from omlx.admin.models.model_snapshot import suggested
from omlx.cli.main import COMMANDS, main
from omlx.cli.output import BOLD, columns, styled
from omlx.cli.serve.ending import ENGINE_DIED
from omlx.machine import machine_bytes
from omlx.models.catalog.discovery import BUNDLED, discover
from omlx.settings import file
from omlx.settings.schema import Settings
from tests.cli.inside import Capture
from tests.processes import environment

# Ends as `omlx` itself does: in CPython before 3.13 a thread counts as ended while MLX still clears
# what it kept for it, and an interpreter that is torn down meanwhile aborts.
IMPORTING = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import Barrier

def show(*names):
    print(*(name for name in names if name in sys.modules), sep=",", flush=True)

for module in sys.argv[1:]:
    import_module(module)
show("mlx", "fastapi")

import omlx.cli.serve.command
show("mlx_lm", "transformers")

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.tokenizer import import_mlx_lm, read_tokenizer
demo = BUNDLED / "omlx-demo"
target, draft = (inspect_checkpoint(name, demo / name, "bundled") for name in ("target", "draft"))
together = Barrier(4)
reads = [lambda entry=entry: read_tokenizer(entry) for entry in (target, draft)]
works = [import_mlx_lm, import_mlx_lm, *reads]
with ThreadPoolExecutor(4) as pool:
    begun = [pool.submit(lambda work=work: (together.wait(), work())) for work in works]
print(sum(each.exception() is None for each in begun), flush=True)

from omlx.models.catalog.drafters import own_head
from omlx.models.pool import load_weights, loader
from omlx.models.pool.head import head_drafter, open_head
from omlx.models.pool.opening import open_model
options = load_weights.LoadOptions(vision=True)
print(*load_weights.load_steps(target, "auto", options), file=sys.stderr)
model, *_ = open_model(target.path, "float32", trusted=False)
head_drafter("mtp", model, 2048, open_head(own_head(target), model))
show("mlx_vlm", "mlx_audio", "cv2", "scipy",  # transformers imports Pillow, where there is one
    "omlx.models.vision.family", "omlx.server.request.media.decode")
os._exit(0)
"""


def test_what_a_process_imports() -> None:
    """Commands that ask a server, or files: no mlx. A server: mlx-lm with its first model, by
    threads that do not stand in each other's way. A text model with a head of its own: no extra.
    """
    names = ("bench", "config", "keys", "logs", "models", "ps", "rm", "run", "stop")
    modules = [COMMANDS[name].partition(":")[0] for name in names]
    command = [sys.executable, "-c", IMPORTING, *modules]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert said.stdout.split("\n") == ["", "", "4", "", ""], said.stderr


# The engine thread runs out of memory once the server accepts requests.
DYING = """
import sys, threading
from omlx.cli import main
from omlx.cli.serve import command as serve
from omlx.engine.thread import EngineThread

class Dying(EngineThread):
    def _run_posted(self):
        super()._run_posted()
        if serving.is_set():
            raise MemoryError("a secret")

class Server(serve.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        serving.set()
        self._monitor._engine.call(lambda: None)

serving = threading.Event()
serve.EngineThread, serve.Server = Dying, Server
sys.exit(main.main(["serve", "--port", "0", "--home", sys.argv[1]]))
"""


# Says when a process for templates starts.
ANNOUNCING = """
import sys
from omlx.cli import main
from omlx.text.template import process as template_process

class Announced(template_process.TemplateProcess):
    def __init__(self):
        super().__init__()
        print("a process for templates", flush=True)

template_process.TemplateProcess = Announced
sys.exit(main.main(["serve", "omlx-demo/draft", "--port", "0", "--home", sys.argv[1]]))
"""


def test_templates_can_be_rendered_once_the_server_is_announced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ANNOUNCING, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    ) as server:
        assert server.stdout is not None
        first = server.stdout.readline()
        server.terminate()
    assert first == "a process for templates\n"


def test_a_dead_engine_thread_ends_the_process_with_a_code_of_its_own(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == ENGINE_DIED, ended.stderr
    assert "the engine thread died" in ended.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["srve"], 2, "Did you mean: omlx serve?"),
        (["zzzz"], 2, "There is no command 'zzzz'"),
        (["config", "get", "prot"], 2, "Unknown setting 'prot'. Did you mean: port?"),
        (["config", "list", "--model", "targt"], 2, "Did you mean: omlx-demo/target?"),
        (["config", "list", "--model", "Omlx-Demo/TARGET"], 2, "Did you mean: omlx-demo/target?"),
        (["config", "list", "--model", "llama-70b"], 2, "omlx models"),
    ],
)
def test_a_slip_is_answered_with_a_similar_name(
    alone: Path, capsys: Capture, words: list[str], status: int, said: str
) -> None:
    assert main(words) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["help"], ["--help"]])
def test_omlx_alone_prints_its_help(alone: Path, capsys: Capture, words: list[str]) -> None:
    if words == ["--help"]:
        with pytest.raises(SystemExit, match="0"):
            main(words)
    else:
        assert main(words) == 0
    shown = capsys.readouterr()
    assert "usage: omlx" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["memory_limit", f"{2 * machine_bytes() >> 30}GB"], "This machine has"),
        (["default_model", "nope"], "No model on this machine has the name 'nope'"),
        (["draft_model", "nope", "--model", "omlx-demo/target"], "nope"),
    ],
)
def test_a_doubtful_value_is_stored_and_said(
    alone: Path, capsys: Capture, words: list[str], said: str
) -> None:
    assert main(["config", "set", *words]) == 0
    error = capsys.readouterr().err
    assert "Stored, but" in error
    assert said in error
    assert main(["config", "get", *words[:1], *words[2:]]) == 0
    assert capsys.readouterr().out.strip() == words[1]


def test_a_sound_value_is_stored_in_silence(alone: Path, capsys: Capture) -> None:
    assert main(["config", "set", "memory_limit", "1GB"]) == 0
    assert main(["config", "set", "default_model", "target"]) == 0
    assert capsys.readouterr().err == ""


def test_values_are_listed_in_words_and_units(alone: Path, capsys: Capture) -> None:
    assert main(["config", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["answer_disk"] == ["256", "MB", "default"]
    assert main(["config", "get", "answer_disk"]) == 0
    assert capsys.readouterr().out == "256MB\n"


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen:
        def isatty(self) -> bool:
            return True

    assert styled("x", BOLD) == "x"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Screen())
    assert columns([("a", "b")], ["NAME", "X"]) == "\x1b[1mNAME  X\x1b[0m\na     b\n"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", BOLD) == "x"


def test_the_suggested_model_is_neither_a_draft_nor_broken(tmp_path: Path) -> None:
    broken = tmp_path / "models/a-broken"
    shutil.copytree(BUNDLED / "omlx-demo/target", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    found = discover(Settings(home=tmp_path), {"HOME": str(tmp_path)})
    models = [entry for entry in found.usable if entry.name != "vision"]
    assert suggested(models, 1 << 40) == "omlx-demo/target"
    pair = [entry for entry in models if entry.name in ("a-broken", "draft")]
    assert suggested(pair, 1 << 40) == "omlx-demo/draft"
    assert suggested(pair[:1], 0) == pair[0].id
    assert suggested([], 1 << 40) is None


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file, "replace_file", full)
    values: Mapping[str, Any] = {"a": 1}
    with file.locked(tmp_path), pytest.raises(file.ConfigError, match="disk is full"):
        file.write(tmp_path / "x.json", values)
