"""Fetching a draft that a package declares: what a person would type, and how a running server does it itself.

That is `omlx pull` in a process of its own, so that the server stays offline.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE

from omlx.catalog import sentence
from omlx.cli.columns import size
from omlx.cli.environment import environment
from omlx.errors import Reason
from omlx.models.catalog.reference import MissingDraft, Reference


def how_to_fetch(wanted: MissingDraft) -> str:
    """The command, and how large it is that will come."""
    known = "?" if wanted.size_bytes is None else size(wanted.size_bytes)
    return sentence("cli.package.wanted", {"draft": str(wanted.reference), "size": known})


async def fetch(reference: Reference) -> Reason | None:
    """Returns why it could not be fetched. The process ends with the task."""
    command = [sys.executable, "-m", "omlx", "pull", str(reference), "--no-draft"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=environment()
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    if process.returncode == 0:
        return None
    lines = errors.decode(errors="replace").strip().splitlines()
    return Reason(
        "draft.fetch_failed", {"draft": str(reference), "detail": lines[-1] if lines else ""}
    )
