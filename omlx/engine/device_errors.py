"""Device errors: which passes an error of mlx condemns, and when the device counts as lost.

mlx keeps an error of the device, throws it once, to whichever call looks first, and clears it; what
the failed pass should have computed then reads as if it were good (mlx/error.h). So the call that
raises says nothing about which pass failed: an error condemns all work that was launched before it
was seen and has not been waited for. `isolate` reports every error here. Pure Python.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from traceback import clear_frames
from types import TracebackType
from typing import Final

from omlx.errors import EngineDead

log = logging.getLogger("omlx.engine")

DEVICE_ERROR: Final = "device error"
"""Name of the event in the log, beside kind and text of mlx, which never quotes a prompt."""


class FaultKind(StrEnum):
    """Kind of a device error, by the text that mlx raises."""

    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    INTERACTIVITY = "impacting_interactivity"
    IGNORED = "submissions_ignored"
    HANG = "hang"
    VICTIM = "innocent_victim"
    INVALID_RESOURCE = "invalid_resource"
    PAGE_FAULT = "page_fault"
    FAILED = "failed"
    UNKNOWN = "unknown"


TEXTS: Final[tuple[tuple[FaultKind, tuple[str, ...]], ...]] = (
    # Metal's MTLCommandBufferError as mlx quotes it: "[METAL] Command buffer execution failed:
    # Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
    (FaultKind.OUT_OF_MEMORY, ("CallbackErrorOutOfMemory", "Insufficient Memory")),
    (FaultKind.TIMEOUT, ("CallbackErrorTimeout", "Caused GPU Timeout Error")),
    (FaultKind.INTERACTIVITY, ("CallbackErrorImpactingInteractivity", "Impacting Interactivity")),
    (FaultKind.IGNORED, ("CallbackErrorSubmissionsIgnored",)),
    (FaultKind.IGNORED, ("Ignored (for causing prior/excessive GPU errors)",)),
    (FaultKind.HANG, ("CallbackErrorHang", "Caused GPU Hang Error")),
    (FaultKind.VICTIM, ("CallbackErrorInnocentVictim", "Innocent Victim of GPU error")),
    (FaultKind.INVALID_RESOURCE, ("CallbackErrorInvalidResource", "Invalid Resource")),
    (FaultKind.PAGE_FAULT, ("CallbackErrorPageFault", "Caused GPU Address Fault Error")),
    # mlx's allocators (backend/metal/allocator.cpp, backend/cuda/allocator.cpp), and CUDA's.
    (
        FaultKind.OUT_OF_MEMORY,
        ("malloc] Unable to allocate", "std::bad_alloc", "[metal::malloc]", "out of memory"),
    ),
    # CUDA (cudaGetErrorString); a sticky error makes every later call fail, too.
    (FaultKind.IGNORED, ("an illegal memory access was encountered", "unspecified launch failure")),
    (FaultKind.IGNORED, ("the launch timed out and was terminated",)),
    # Any other error of a command buffer, an event or a primitive's kernel.
    (FaultKind.FAILED, ("[METAL]", "[Event::", "[Fence::", "::eval_cpu]", "::eval_gpu]")),
    (FaultKind.FAILED, ("cuda", "cublas")),
)
"""Parts of mlx's error texts, the specific ones first."""

FILES: Final = ("[load", "[save", "[read")
"""Beginnings of mlx's errors about files."""

NOT_FATAL: Final = frozenset({FaultKind.OUT_OF_MEMORY, FaultKind.UNKNOWN})
"""Kinds that a device survives, however many follow each other."""

TOO_MUCH: Final = frozenset(
    {FaultKind.OUT_OF_MEMORY, FaultKind.TIMEOUT, FaultKind.INTERACTIVITY, FaultKind.HANG}
)
"""Kinds that a shorter pass may not meet again."""

MAX_IN_A_ROW: Final = 2
"""Failed passes without a good one in between after which the device counts as lost."""


def kind_of(error: BaseException) -> FaultKind | None:
    """Return the kind of a device error; None for an error that is none.

    mlx raises all of them as RuntimeError or, where the host has no memory, as MemoryError; its
    texts begin with the operation in brackets. An unknown text of this form counts: an error that
    was another one costs a pass, the other way round it would cost an answer. An error that was
    raised from one of a known kind is one, too.
    """
    if error.__cause__ is not None:
        kind = kind_of(error.__cause__)
        return None if kind is FaultKind.UNKNOWN else kind
    if isinstance(error, MemoryError):
        return FaultKind.OUT_OF_MEMORY
    text = str(error)
    if type(error) is not RuntimeError or text.startswith(FILES):
        return None
    unknown = FaultKind.UNKNOWN if text.startswith("[") else None
    known = (kind for kind, parts in TEXTS if any(part in text for part in parts))
    return next(known, unknown)


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A device error: its kind, mlx's text, and the time it was seen at (Unix seconds)."""

    kind: FaultKind
    text: str
    at: float


class DeviceErrors:
    """Record of the device errors of this process. Used on the engine thread.

    `seen` counts errors, and so numbers the work between two of them: the launch of a pass keeps
    the number, and `outcome` says whether an error was seen since. `counts` are by kind. `lost`
    says why the device takes no more work, once it does not.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a new process does."""
        self.seen = 0
        self.last: DeviceFault | None = None
        self.counts: Counter[FaultKind] = Counter()
        self.lost: EngineDead | None = None
        self._in_a_row = 0
        self._drained = 0  # work launched before this many errors belongs to a failure that counted

    def note(self, error: BaseException, *, waited: bool = False) -> None:
        """Record an error if it is one of the device. Its frames are cleared: they hold the arrays
        of a failed pass, for whose memory a second try may have to wait.

        `waited`: it came from a wait for mlx, so that a RuntimeError of any text is one.
        """
        kind = kind_of(error)
        if kind is None and waited and type(error) is RuntimeError:
            kind = FaultKind.UNKNOWN
        if kind is None:
            return
        clear_frames(error.__traceback__)
        text = str(error.__cause__ or error)
        self.last = DeviceFault(kind, text, time.time())
        self.seen += 1
        self.counts[kind] += 1
        fields = {"kind": str(kind), "detail": text}
        log.error(DEVICE_ERROR, extra={"fields": fields})
        if kind is FaultKind.IGNORED:
            self._lose(self.last)

    def outcome(self, launched: int, *, computed: bool = True) -> DeviceFault | None:
        """Return the error that condemns work launched when `seen` was `launched`; None: it is
        good. Call it once all its results have been waited for. Work that `computed` nothing proves
        nothing of the device.
        """
        if launched == self.seen or self.last is None:
            if computed:
                self._in_a_row = 0
            return None
        if launched >= self._drained and self.last.kind not in NOT_FATAL:
            self._in_a_row += 1
        self._drained = self.seen
        if self._in_a_row >= MAX_IN_A_ROW:
            self._lose(self.last)
        return self.last

    def _lose(self, fault: DeviceFault) -> None:
        if self.lost is None:
            self.lost = EngineDead("device.lost", kind=str(fault.kind))


DEVICE: Final = DeviceErrors()
"""Record of this process: mlx's errors belong to the process, too."""


class isolate:
    """Context that suppresses an Exception and keeps it as `error`.

        with isolate() as outcome:
            draft = drafter.draft(row, limit)
        if outcome.error is not None:
            ...  # end the row, or disable the drafter

    With `on_error`, calls `on_error(*args, error)`. Names assigned in the body are unbound where
    `error` is set. KeyboardInterrupt and SystemExit pass through. An error of the device may be
    another pass's, so it is reported to `DEVICE`; `waits` says that the body only waits for mlx.
    """

    __slots__ = ("_args", "_on_error", "_waits", "error")

    def __init__(
        self, on_error: Callable[..., object] | None = None, *args: object, waits: bool = False
    ) -> None:
        self._on_error = on_error
        self._args = args
        self._waits = waits
        self.error: Exception | None = None

    def __enter__(self) -> isolate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        DEVICE.note(error, waited=self._waits)
        if self._on_error is not None:
            self._on_error(*self._args, error)
        return True
