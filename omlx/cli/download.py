"""Download of a draft model: the command for a person, and the process of a running server.

That process is `omlx pull`, so that the server itself stays offline.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE

from omlx.catalog import sentence
from omlx.cli import user_environment
from omlx.cli.output import size
from omlx.errors import Reason
from omlx.models.catalog.reference import MissingDraft, Reference


def download_hint(missing: MissingDraft) -> str:
    """Return a sentence with the command that downloads a draft, and its size."""
    known = "?"
    if missing.size_bytes is not None:
        known = size(missing.size_bytes)
    return sentence("cli.package.wanted", {"draft": str(missing.reference), "size": known})


async def download(reference: Reference) -> Reason | None:
    """Download a model. Returns why it failed, or None. Cancelling the task ends the process."""
    command = [sys.executable, "-m", "omlx", "pull", str(reference), "--no-draft"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=user_environment()
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
    return Reason("draft.fetch_failed", {"draft": str(reference), "detail": (lines or [""])[-1]})
