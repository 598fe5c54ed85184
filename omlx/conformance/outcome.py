"""How a check of a server ends.

A server that refuses a feature, or leaves an optional field out, does *not support* it. One that
accepts a request and does something else *fails*.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_SUPPORTED = "not supported"


class Failed(Exception):
    """The server accepts a request, and its answer is not what the API promises."""


class NotSupported(Exception):
    """The server refuses a request, or leaves an optional field out."""


@dataclass(frozen=True, slots=True)
class Result:
    """One check: a stable name, a title for people, how it ended, and what was seen."""

    name: str
    title: str
    outcome: Outcome
    seen: str
