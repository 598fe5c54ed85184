"""What a start without a model does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from omlx.cli.main import COMMANDS
from omlx.cli.serve.ending import ENGINE_DIED
from tests.processes import environment

# Ends as `omlx` itself does: in CPython before 3.13 a thread counts as ended while MLX still clears
# what it kept for it, and an interpreter that is torn down meanwhile aborts.
AT_ONCE = """
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import import_mlx_lm, read_tokenizer
import omlx.cli.serve.command

demo = BUNDLED / "omlx-demo"
entries = [ModelEntry(f"omlx-demo/{name}", demo / name, "bundled") for name in ("target", "draft")]
together = Barrier(4)
reads = [lambda entry=entry: read_tokenizer(entry) for entry in entries]
works = [import_mlx_lm, import_mlx_lm, *reads]
with ThreadPoolExecutor(4) as pool:
    begun = [pool.submit(lambda work=work: (together.wait(), work())) for work in works]
print(sum(each.exception() is None for each in begun), flush=True)
os._exit(0)
"""


def test_threads_that_need_them_at_the_same_time_do_not_stand_in_each_others_way() -> None:
    said = subprocess.run(
        [sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout.split() == ["4"]


def test_mlx_lm_and_transformers_are_imported_with_the_first_model_and_not_before() -> None:
    look = (
        "import sys, omlx.cli.serve.command; "
        "print(*(name in sys.modules for name in ('mlx_lm', 'transformers')))"
    )
    said = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120
    )
    assert said.stdout.split() == ["False", "False"]


def test_commands_that_ask_a_server_or_files_import_no_mlx() -> None:
    names = ("config", "keys", "logs", "models", "ps", "rm", "run", "stop")
    modules = " ".join(f"import {COMMANDS[name].partition(':')[0]};" for name in names)
    look = f"import sys; {modules} print(sorted({{'mlx', 'fastapi'}} & set(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


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
