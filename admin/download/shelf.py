"""The results of searches, kept so that their rows follow the downloads without asking again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from omlx.models.hub.offer import Offer

MAX_SEARCHES: Final = 16


class Shelf:
    """The newest searches, by their text."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Sequence[Offer]] = OrderedDict()

    def put(self, text: str, offers: Sequence[Offer]) -> None:
        self._found.pop(text, None)
        self._found[text] = offers
        if len(self._found) > MAX_SEARCHES:
            self._found.popitem(last=False)

    def get(self, text: str) -> Sequence[Offer] | None:
        """Return the results; None for a search that was not made, or too long ago."""
        return self._found.get(text)
