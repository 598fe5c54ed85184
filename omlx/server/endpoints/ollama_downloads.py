"""POST /api/pull: a download from the hub, one of those that the dashboard shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from hashlib import sha256
from typing import Any, Final

from fastapi import Request
from starlette.responses import JSONResponse, Response

from omlx.errors import BadRequest, Forbidden, ModelError, NotFound, OmlxError
from omlx.models.catalog.catalog import LATEST
from omlx.models.catalog.reference import Reference
from omlx.models.hub.downloads import Downloads
from omlx.models.pool.pool import Pool
from omlx.server.dialects.ollama.fields import Named
from omlx.server.http import errors, sse
from omlx.server.http.body import read_body
from omlx.server.http.connection import while_connected
from omlx.server.http.errors import field_error
from omlx.server.http.keys import MAIN_KEY, key_of
from omlx.server.request.dialect import Json
from omlx.server.request.fields import read

POLL_S: Final = 0.25
"""Seconds between two reports of progress."""
LISTED_S: Final = 15.0
"""Seconds within which a model that has arrived is listed: folders are watched."""
_SUCCESS: Final[Json] = {"status": "success"}


class PullRequest(Named):
    """The body of POST /api/pull."""

    stream: bool | None = None


class DownloadEndpoints:
    def __init__(self, pool: Pool, downloads: Downloads) -> None:
        self._pool = pool
        self._downloads = downloads

    async def pull(self, request: Request) -> Response:
        """Download a model; one that is here is a success. Continues if the client disconnects.

        Raises Forbidden without the key of the setting `api_key`: only its owner may fill the disk.
        """
        body = await read_body(request, partial(read, PullRequest))
        if body.id is None:
            raise field_error("request.missing", "model")
        name = body.id.removesuffix(LATEST)
        steps = self._steps(name, self._reference(request, name))
        if body.stream is not False:
            return sse.EventStream(_frames(steps), lambda: None, sse.NDJSON)
        return JSONResponse(await while_connected(request.receive, _last(steps)))

    def _reference(self, request: Request, name: str) -> Reference | None:
        """What to download; None for nothing. Raises Forbidden, and ModelError for other names."""
        if self._is_here(name):
            return None
        if key_of(request.scope) != MAIN_KEY:
            raise Forbidden("ollama.pull_key")
        reference = Reference.parse(name)
        if not reference.on_hub:
            raise BadRequest("ollama.pull_name", param="model", model=name)
        return reference

    def _is_here(self, name: str) -> bool:
        try:
            self._pool.catalog.target(name)
        except (NotFound, ModelError):
            return False
        return True

    async def _steps(self, name: str, reference: Reference | None) -> AsyncGenerator[Json, None]:
        """Yield the progress. Raises ModelError for a download that fails."""
        yield {"status": "pulling manifest"}
        if reference is not None:
            async with aclosing(self._progress(reference)) as progress:
                async for step in progress:
                    yield step
            await self._wait_until_listed(name)
        yield _SUCCESS

    async def _progress(self, reference: Reference) -> AsyncGenerator[Json, None]:
        digest = f"sha256:{sha256(reference.repository.encode()).hexdigest()}"
        task = asyncio.create_task(self._downloads.fetch(reference))
        try:
            while not task.done():
                await asyncio.wait([task], timeout=POLL_S)
                for download in await self._downloads.all():
                    if download.repository == reference.repository and download.total_bytes:
                        yield {
                            "status": f"pulling {reference}",
                            "digest": digest,
                            "total": download.total_bytes,
                            "completed": download.done_bytes,
                        }
        finally:
            task.cancel()  # it only waits: the download continues
        failure = task.result()
        if failure is not None:
            params: dict[str, Any] = failure.params
            raise ModelError(failure.code, **params)

    async def _wait_until_listed(self, name: str) -> None:
        """Raises NotFound for a model that does not come, ModelError for one of no use."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTED_S):
                while not self._is_here(name):
                    await asyncio.sleep(POLL_S)  # another task watches the folders
        self._pool.catalog.target(name)


async def _frames(steps: AsyncGenerator[Json, None]) -> AsyncGenerator[bytes, None]:
    """Yield a line for each step; an error becomes the last one."""
    try:
        async with aclosing(steps):
            async for step in steps:
                yield sse.line(step)
    except OmlxError as error:
        yield sse.line(errors.ollama(error))


async def _last(steps: AsyncGenerator[Json, None]) -> Json:
    async with aclosing(steps):
        return [step async for step in steps][-1]
