"""Programs that sent requests, for the pages of clients and keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from omlx.server.http.guard import DASHBOARD

MAX_PROGRAMS: Final = 64


@dataclass(frozen=True, slots=True)
class Seen:
    """`client` is the first word of the User-Agent, such as `claude-cli/2.1.197`; its newest
    request came `at` seconds since the epoch. `refused`: it was not answered."""

    client: str
    at: float
    refused: bool


class LastSeen:
    """The programs heard of last, at most `MAX_PROGRAMS`."""

    def __init__(self) -> None:
        self._programs: OrderedDict[str, Seen] = OrderedDict()

    @property
    def programs(self) -> Sequence[Seen]:
        """The newest first."""
        return tuple(reversed(self._programs.values()))

    def note(self, client: str, at: float, *, refused: bool = False) -> None:
        """Record a request. Those of the dashboard, and without a User-Agent, are left out."""
        word = client.partition(" ")[0]
        if not word or word == DASHBOARD:
            return
        self._programs[word] = Seen(word, at, refused)
        self._programs.move_to_end(word)
        if len(self._programs) > MAX_PROGRAMS:
            self._programs.popitem(last=False)
