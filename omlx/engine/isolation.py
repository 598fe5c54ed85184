"""Failure isolation: an exception in one row's work must not reach the other rows of the step."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from omlx.engine.device_errors import DEVICE


class isolate:
    """Context that suppresses an Exception and keeps it as `error`.

        with isolate() as outcome:
            draft = drafter.draft(sequence, limit)
        if outcome.error is not None:
            ...  # end the row, or disable the drafter

    With `on_error`, calls `on_error(*args, error)`. Names assigned in the body are unbound where
    `error` is set. KeyboardInterrupt and SystemExit pass through. An error of the device may be
    another pass's, so it is reported to `DEVICE`; `waits` says that the body only waits for mlx.
    """

    __slots__ = ("_args", "_on_error", "_waits", "error")

    def __init__(
        self,
        on_error: Callable[..., object] | None = None,
        *args: object,
        waits: bool = False,
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
