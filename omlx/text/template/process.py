"""Chat templates rendered in another process, with limits of time and memory.

A process is taken for each render and given back afterwards; a process over a limit is killed.
Renders of a model take turns, so that a slow template delays its own model only.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import date
from multiprocessing import Pipe
from threading import Lock
from time import monotonic
from typing import Any, Final

from omlx.errors import BadRequest
from omlx.machine import footprint
from omlx.text.template.worker import RENDERED, TemplateJob
from omlx.text.tokens import Tokenizer, per_tokenizer

MAX_SECONDS: Final = 10
"""Processor seconds per render — waiting for a core is no template's fault."""
MAX_WAIT_S: Final = 50
MAX_BYTES: Final = 1 << 30
"""Bytes of a process — a body of 32 MB takes a third."""
MAX_PROMPT_BYTES: Final = 64 << 20
KEPT: Final = 2
"""Idle processes kept, each with some 60 MB."""
KEPT_BYTES: Final = 112 << 20
"""Bytes — a larger process is not kept."""
_START_S: Final = 120
_POLL_S: Final = 0.05


class TemplateError(Exception):
    """Error of the template itself."""


class TemplateProcess:
    """A process that renders templates, one at a time."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", "omlx.text.template.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._ready = False

    @property
    def reusable(self) -> bool:
        return self._process.poll() is None and footprint(self._process.pid) < KEPT_BYTES

    def start(self) -> None:
        """Wait until the process accepts jobs. Raises OSError."""
        if not self._ready:
            if not self._connection.poll(_START_S):
                raise TimeoutError("the process that renders templates did not start")
            self._connection.recv_bytes()
            self._ready = True

    def render(self, job: TemplateJob) -> str:
        """Return the prompt. Raises TemplateError.

        Raises BadRequest beyond the limits, and if the process ends; then the caller must close it.
        """
        self.start()
        deadline = monotonic() + MAX_WAIT_S
        try:
            self._connection.send(job)
            while not self._connection.poll(_POLL_S):
                if monotonic() > deadline or footprint(self._process.pid) > MAX_BYTES:
                    raise _limited()
            reply = self._connection.recv_bytes(MAX_PROMPT_BYTES)
        except (EOFError, OSError) as error:
            raise _limited() from error
        text = reply[1:].decode(errors="surrogatepass")
        if reply[:1] != RENDERED:
            raise TemplateError(text)
        return text

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def render_template(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    **options: bool,
) -> str:
    """Return the text of a prompt. Modifies no argument.

    `options` are those of `apply_chat_template`. Raises BadRequest beyond the limits, and any
    exception of the template. Python templates, of mlx-lm or transformers, are trusted and run in
    this process.
    """
    if not is_jinja(tokenizer):
        copies = deepcopy([dict(message) for message in messages])
        own = deepcopy(dict(variables))
        return str(tokenizer.apply_chat_template(copies, tokenize=False, **options, **own))
    variables = with_further_variables(str(tokenizer.chat_template), variables)
    job = _job(tokenizer, messages, {**variables, **options})
    with _turn(tokenizer):
        process = _idle.take()
        try:
            prompt = process.render(job)
        except TemplateError:
            _idle.give_back(process)
            raise
        except BaseException:
            process.close()
            raise
        _idle.give_back(process)
        return prompt


def is_jinja(tokenizer: Tokenizer) -> bool:
    """Whether the chat template is the model's own, in Jinja."""
    # Imported with the first tokenizer: slow.
    from transformers import PreTrainedTokenizerBase  # noqa: PLC0415

    own = type(tokenizer._tokenizer).apply_chat_template
    return tokenizer._chat_template is None and own is PreTrainedTokenizerBase.apply_chat_template


def start_early() -> None:
    """Start a process, which takes half a second, before the first render.

    Does not wait until the process is ready.
    """
    _idle.give_back(_idle.take())


class _IdleProcesses:
    """Idle processes, `KEPT` at most. Thread-safe."""

    def __init__(self) -> None:
        self._processes: list[TemplateProcess] = []
        self._lock = Lock()
        atexit.register(self._close)

    def take(self) -> TemplateProcess:
        """Return an idle process, or a new one.

        If none is left, another process starts meanwhile: another model's render would wait for its
        start if this process gets stuck.
        """
        process = self._idle() or TemplateProcess()
        with self._lock:
            if not self._processes:
                self._processes.append(TemplateProcess())
        return process

    def _idle(self) -> TemplateProcess | None:
        while True:
            with self._lock:
                if not self._processes:
                    return None
                process = self._processes.pop()
            if process.reusable:
                return process
            process.close()

    def give_back(self, process: TemplateProcess) -> None:
        with self._lock:
            if len(self._processes) < KEPT and process.reusable:
                self._processes.append(process)
                return
        process.close()

    def _close(self) -> None:
        while self._processes:
            self._processes.pop().close()


_idle: Final = _IdleProcesses()
_turn: Final = per_tokenizer(lambda tokenizer: Lock())


def _job(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
) -> TemplateJob:
    inner = tokenizer._tokenizer
    variables = {**inner.special_tokens_map, "enable_thinking": tokenizer.has_thinking, **given}
    template = inner.get_chat_template(tools=variables.get("tools"))
    copies = [dict(message) for message in messages]
    return TemplateJob(template, copies, variables, MAX_SECONDS)


def _limited() -> BadRequest:
    return BadRequest(
        "template.limits",
        param="messages",
        seconds=MAX_SECONDS,
        memory=MAX_BYTES >> 20,
        length=MAX_PROMPT_BYTES >> 20,
    )


_FIREFUNCTION: Final = ("+ functions", "+ datetime")
"""Texts of Firefunction's template, which reads functions as a text, and the date."""


def with_further_variables(template: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    if not all(text in template for text in _FIREFUNCTION):
        return dict(variables)
    functions = [tool["function"] for tool in variables.get("tools") or ()]
    further = {
        "functions": json.dumps(functions, indent=4, ensure_ascii=False),
        "datetime": date.today().strftime("%b %d %Y"),
    }
    return {**further, **variables}
