"""Work for a client is cancelled when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.types import Receive, Scope

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection: there is no one to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`.

    Cancels it and raises ClientGone if the client disconnects first.

    The request's body must have been read: after it, `receive` waits for the client to disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for pending in (task, gone):
            pending.cancel()
        for pending in (task, gone):
            with suppress(asyncio.CancelledError, Exception):
                await pending


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_NOTES: Final = "omlx.notes"


def note(scope: Scope, outcome: object) -> None:
    """Add what the request became."""
    scope.setdefault(_NOTES, []).append(outcome)


def notes(scope: Scope) -> Sequence[object]:
    """Return what was noted so far, in order."""
    noted: list[object] = scope.setdefault(_NOTES, [])
    return noted
