"""Work for a client only lasts as long as the client does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection; nobody is left to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; it is cancelled, and ClientGone raised, when the client goes first.

    The request's body must have been read: from then on `receive` only waits for the end of the connection.
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
