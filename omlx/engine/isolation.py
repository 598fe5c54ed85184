"""Failure isolation: an exception in one row's work must not reach the other rows of the step."""

from __future__ import annotations

from types import TracebackType


class isolate:
    """Context that stores an Exception raised in its body as `error` and suppresses it.

        with isolate() as outcome:
            draft = drafter.draft(sequence, limit)
        if outcome.error is not None:
            ...  # end the row, or disable the drafter

    Names assigned in the body are unbound where `error` is set. KeyboardInterrupt and SystemExit pass through.
    """

    __slots__ = ("error",)

    def __init__(self) -> None:
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
        return True
