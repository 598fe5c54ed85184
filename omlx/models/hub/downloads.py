"""Downloads of a server: start, pause, resume, discard; a process per download.

The server stays offline, and a stalled hub blocks no request. Records in `omlx.models.hub.job`
survive restarts and are shared with `omlx pull`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from omlx.errors import ModelError, NotFound, OmlxError, Reason
from omlx.models.catalog.discovery import hub_root
from omlx.models.catalog.reference import Reference
from omlx.models.hub.job import Job, JobRecord, delete_model, discard_parts, unfinished
from omlx.models.hub.offer import Offer
from omlx.settings.configuration import LiveConfiguration

AT_ONCE: Final = 2
"""Concurrent downloads; further downloads wait."""
SEARCH_S: Final = 30.0
"""Seconds — limit for the hub's answer to a search."""

SPAN_S: Final = 20.0
"""Seconds — long enough for slow networks: the library writes 10 MB at a time."""

_COMMAND: Final = (sys.executable, "-m", "omlx.models.hub.child")
_OFFERS: Final = TypeAdapter(list[Offer])


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Download:
    """Status of a download.

    `total_bytes` is 0 until the hub has answered; `rate` in bytes per second over `SPAN_S`.
    `elsewhere`: another process downloads, such as `omlx pull`.
    """

    model: str
    repository: str
    state: State
    total_bytes: int = 0
    done_bytes: int = 0
    rate: float | None = None
    elsewhere: bool = False
    failure: Reason | None = None

    @property
    def active(self) -> bool:
        return self.state in (State.WAITING, State.RUNNING)

    @property
    def share(self) -> float | None:
        """Share of the bytes; None until the hub has answered."""
        return self.done_bytes / self.total_bytes if self.total_bytes else None

    @property
    def checking(self) -> bool:
        """Whether all bytes are here, and their checksums are compared."""
        return self.state is State.RUNNING and 0 < self.total_bytes <= self.done_bytes

    @property
    def left_s(self) -> float | None:
        """Seconds to completion at this rate; None if unknown."""
        if not self.rate:
            return None
        return (self.total_bytes - self.done_bytes) / self.rate


class Meter:
    """Rate of a download over the last `SPAN_S`, from samples of done bytes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def rate(self, now: float, done_bytes: int) -> float | None:
        """Return bytes per second up to `now`, in seconds; None for the first sample."""
        samples = self._samples
        if samples and done_bytes < samples[-1][1]:  # a part was deleted
            samples.clear()
        samples.append((now, done_bytes))
        while now - samples[0][0] > SPAN_S:
            samples.popleft()
        begun, before = samples[0]
        if now <= begun:
            return None
        return (done_bytes - before) / (now - begun)


@dataclass(slots=True)
class _Run:
    """A download of this server; `begun` once it no longer waits for a slot."""

    reference: Reference
    task: asyncio.Task[None]
    begun: bool = False
    paused: bool = False
    failure: Reason | None = None
    meter: Meter = field(default_factory=Meter)

    @property
    def runs(self) -> bool:
        return not self.task.done()


class Downloads:
    """Downloads of a server: `home` is OMLX_HOME, `environ` is for processes that go online.

    Methods run on the event loop. Closing the loop cancels all tasks, which kills the processes.
    """

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._home = home
        self._environ = environ
        self._runs: dict[str, _Run] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.on_arrival: Callable[[], Awaitable[None]] | None = None
        """Lists new models; awaited before a download counts as done, so that its model is
        usable.
        """
        self.cache = hub_root(environ)

    async def all(self) -> list[Download]:
        """Return the downloads of this run and all incomplete ones, by name."""
        known = await asyncio.to_thread(self._read)
        for repository, run in self._runs.items():
            known.setdefault(repository, _OnDisk(JobRecord(run.reference), listed=False))
        return [self._download(found) for _, found in sorted(known.items())]

    def start(self, reference: Reference) -> None:
        """Start or continue a download; a running download is unaffected."""
        run = self._runs.get(reference.repository)
        if run is None or not run.runs:
            task = asyncio.create_task(self._download_in_turn(reference))
            self._runs[reference.repository] = _Run(reference, task)

    async def fetch(self, reference: Reference) -> Reason | None:
        """Download a model; return the reason of a failure, None on success."""
        self.start(reference)
        run = self._runs[reference.repository]
        await asyncio.wait([run.task])
        if run.paused:
            return Reason("pull.paused", {"repository": reference.repository})
        return run.failure

    async def pause(self, repository: str) -> None:
        """Stop a download and keep its files. Raises NotFound unless it runs in this server."""
        run = self._runs.get(repository)
        if run is None or not run.runs:
            raise NotFound("pull.not_running", repository=repository)
        await self._stop(run)

    async def resume(self, repository: str) -> None:
        """Continue a download. Raises NotFound if unknown."""
        for download in await self.all():
            if download.repository == repository:
                return self.start(Reference.parse(download.model))
        raise NotFound("pull.not_running", repository=repository)

    async def discard(self, repository: str) -> None:
        """Stop a download and delete its partial files, but not a complete model.

        Raises Conflict if another process downloads the repository.
        """
        await self._forget(repository)
        await asyncio.to_thread(discard_parts, self._home, self.cache, repository)

    async def delete(self, repository: str) -> None:
        """Delete a model from the hub's cache. Raises ModelError, and Conflict as `discard`."""
        await self._forget(repository)
        await asyncio.to_thread(delete_model, self._home, self.cache, repository)

    async def search(self, text: str) -> list[Offer]:
        """Search the hub. Raises ModelError."""
        try:
            async with asyncio.timeout(SEARCH_S):
                found = await self._ask({"do": "search", "text": text})
        except TimeoutError:
            raise ModelError("pull.silent", seconds=int(SEARCH_S)) from None
        return _OFFERS.validate_python(found)

    def free_bytes(self) -> int:
        """Return the free bytes on the disk of the hub's cache."""
        folder = self.cache
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    async def _forget(self, repository: str) -> None:
        run = self._runs.pop(repository, None)
        if run is not None:
            await self._stop(run)

    async def _stop(self, run: _Run) -> None:
        if run.runs:
            run.paused = True
            run.task.cancel()
            await asyncio.wait([run.task])

    async def _download_in_turn(self, reference: Reference) -> None:
        run = self._runs[reference.repository]
        job = Job(self._home, reference.repository)
        try:
            await asyncio.to_thread(_begin, job, reference)
            async with self._slots:
                run.begun = True
                await self._ask({"do": "pull", "model": str(reference), "home": str(self._home)})
            if self.on_arrival is not None:
                await self.on_arrival()
        except OmlxError as error:
            run.failure = error.reason

    async def _ask(self, request: dict[str, Any]) -> Any:
        """Run a hub process for one request; return its answer. Raises ModelError."""
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self._environ,
            start_new_session=True,  # pip, which it may start, has to end with it
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            # The child's input stays open meanwhile: the child ends when this process does.
            process.stdin.write(json.dumps(request).encode() + b"\n")
            answer, errors = await asyncio.gather(process.stdout.read(), process.stderr.read())
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            await process.wait()
        return _parse(answer, errors)

    def _read(self) -> dict[str, _OnDisk]:
        known = {}
        for record in unfinished(self._home):
            job = Job(self._home, record.reference.repository)
            done = record.done_bytes(self.cache, job.parts)
            known[record.reference.repository] = _OnDisk(record, done, locked=job.runs)
        return known

    def _download(self, found: _OnDisk) -> Download:
        record, run = found.record, self._runs.get(found.record.reference.repository)
        state, rate = _state(found, run), None
        if state is State.RUNNING and run is not None:
            rate = run.meter.rate(time.monotonic(), found.done_bytes)
        failure = record.failure
        if run is not None and run.failure is not None:
            failure = run.failure
        return Download(
            str(record.reference),
            record.reference.repository,
            state,
            record.total_bytes,
            found.done_bytes,
            rate,
            elsewhere=found.locked and (run is None or not run.runs),
            failure=failure if state is State.FAILED else None,
        )


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Download as found on disk; `listed`: has a record; `locked`: a process downloads."""

    record: JobRecord
    done_bytes: int = 0
    locked: bool = False
    listed: bool = True


def _state(found: _OnDisk, run: _Run | None) -> State:
    if run is not None and run.runs:
        return State.RUNNING if run.begun else State.WAITING
    if found.locked:
        return State.RUNNING
    if found.record.failure is not None or (run is not None and run.failure is not None):
        return State.FAILED
    if found.listed or (run is not None and run.paused):
        return State.PAUSED
    return State.DONE


def _begin(job: Job, reference: Reference) -> None:
    try:
        if not job.runs:  # else the process that downloads has written the record
            job.begin(reference)
    except OSError as error:
        params = {"repository": reference.repository, "detail": str(error)}
        raise ModelError("pull.failed", **params) from error


def _parse(answer: bytes, errors: bytes) -> Any:
    """Parse the answer of a hub process. Raises its error as ModelError."""
    try:
        record = json.loads(answer)
    except ValueError:
        lines = errors.decode(errors="replace").strip().splitlines() or [""]
        raise ModelError("pull.crashed", detail=lines[-1]) from None
    if "error" in record:
        raise ModelError(record["error"]["code"], **record["error"]["params"])
    return record["ok"]


def remember_draft(configuration: LiveConfiguration, model: str, draft: str) -> None:
    """Store `draft` as the model's draft, unless one is stored. Writes the settings file.

    Raises ConfigError.
    """
    if not configuration.current.stored.layer(model).values.get("draft_model"):
        configuration.patch({"draft_model": draft}, model)
