"""Process for rendering chat templates: python -m omlx.text.template.worker FD

Templates come with downloaded models and are programs, which may run for ever or fill the memory. A
process can be ended. Jobs arrive over the socket FD, one after another, until the parent closes the
socket or ends.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

ORPHAN_S: Final = 60
"""Seconds — limit of a render; the parent ends renders earlier unless the parent has gone."""
RENDERED: Final = b"+"
FAILED: Final = b"-"
"""First byte of a reply, before the prompt or the template's error as UTF-8."""


@dataclass(frozen=True, slots=True)
class TemplateJob:
    template: str
    messages: list[dict[str, Any]]
    variables: dict[str, Any]  # with the special tokens and the options of the renderer
    seconds: float  # processor time after which the process ends


def serve(parent: Connection) -> None:
    """Render every job that arrives. Sends an empty message once ready."""
    # Slow, hence in this process only once.
    from transformers import PreTrainedTokenizerBase  # noqa: PLC0415

    renderer: Any = PreTrainedTokenizerBase()  # type: ignore[no-untyped-call]
    parent.send_bytes(b"")
    while True:
        job: TemplateJob = parent.recv()
        signal.alarm(ORPHAN_S)
        signal.setitimer(signal.ITIMER_PROF, job.seconds)
        try:
            prompt = renderer.apply_chat_template(
                job.messages, chat_template=job.template, tokenize=False, **job.variables
            )
            reply = RENDERED + str(prompt).encode(errors="surrogatepass")
        except Exception as error:  # noqa: BLE001 — of any type: a template is a program
            reply = FAILED + (str(error) or type(error).__name__).encode(errors="replace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        parent.send_bytes(reply)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which drains
    with suppress(EOFError, OSError):  # the parent has gone
        serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
