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
    names = ("config", "keys", "logs", "models", "ps", "rm", "run", "stop")
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
