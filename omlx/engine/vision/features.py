"""Features of images: those that the runner holds, and those to compute next. Pure Python.

    wanted by a row ── Look, a few steps of the tower at a time ──► held ── LRU ──► Forget

Features are held while a row that prefills needs them, and behind that up to `MAX_IDLE_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from omlx.engine.step.plan import CacheOp, Forget, Look
from omlx.engine.step.row import Row
from omlx.engine.types import Request
from omlx.engine.vision.spans import PreparedImage, TowerFacts, spans_within

MAX_IDLE_BYTES: Final = 128 << 20
"""Bytes of features that no row needs: an image of 1,280 tokens has some 10 MB."""


@dataclass(slots=True)
class _Image:
    """An image. `done` counts planned steps of the tower; `looker` is the row that paid last."""

    nbytes: int
    done: int = 0
    looker: int = 0
    rows: set[int] = field(default_factory=set)


class Looks:
    """The images of one model. `tower` None: the model has no vision tower."""

    def __init__(self, tower: TowerFacts | None = None) -> None:
        self.tower = tower
        self._images: dict[str, _Image] = {}  # least recently used first

    @property
    def names(self) -> list[str]:
        return list(self._images)

    def need(self, request: Request) -> int:
        """Return bytes that the images of a request take: features, and the largest activations."""
        tower = self.tower
        missing = [image for image in request.images if not self._complete(image.name)]
        if tower is None or not missing:
            return 0
        features = sum(image.features for image in missing) * tower.feature_bytes
        return features + max(tower.activation_bytes(image.patches) for image in missing)

    def plan(self, row: Row, budget: int) -> tuple[list[CacheOp], int, int]:
        """Look at the images that the row's next `budget` tokens show, in order.

        Return the operations, how much of the budget they take, and the position before which all
        features are there. At least one step of a tower fits any budget.
        """
        tower, ops = self.tower, list[CacheOp]()
        stop, spent = row.computed + budget, 0
        if tower is None or not row.request.spans:
            return ops, spent, stop
        for span in spans_within(row.request.spans, row.computed, stop):
            image = self._use(row, span.image)
            if image.done < tower.steps and spent < budget:
                prepared = next(i for i in row.request.images if i.name == span.image)
                cost = tower.step_cost(prepared.patches)
                steps = min(tower.steps - image.done, max(1, int((budget - spent) / cost)))
                ops.append(Look(row.id, span.image, image.done, image.done + steps))
                image.done += steps
                image.looker = row.id
                spent = min(budget, spent + round(steps * cost))
            if image.done < tower.steps:
                return ops, spent, span.start
        return ops, spent, stop

    def release(self, row: int) -> list[CacheOp]:
        """Release the images of a row. Return the operations that forget features."""
        forgotten = []
        for name, image in self._images.items():
            image.rows.discard(row)
            if not image.rows and not self._complete(name):
                forgotten.append(name)
        return self._forget([*forgotten, *self._excess(MAX_IDLE_BYTES)])

    def fail(self, row: int) -> list[CacheOp]:
        """Release the images of a failed row, and forget features that were computed for it."""
        unproven = [name for name, image in self._images.items() if image.looker == row]
        return [*self._forget(unproven), *self.release(row)]

    def clear(self) -> list[CacheOp]:
        """Forget all features that no row needs."""
        return self._forget(list(self._excess(0)))

    def prepared(self, ops: list[CacheOp], rows: Sequence[Row]) -> dict[str, PreparedImage]:
        """Return the images that the operations look at, by name."""
        names = {op.image for op in ops if isinstance(op, Look)}
        if not names:
            return {}
        images = [image for row in rows for image in row.request.images]
        return {image.name: image for image in images if image.name in names}

    def check(self) -> None:
        """Raise AssertionError for an image that is held for nothing. For tests."""
        for name, image in self._images.items():
            assert image.rows or self._complete(name), name

    def _use(self, row: Row, name: str) -> _Image:
        image = self._images.pop(name, None)
        if image is None:
            features = next(i.features for i in row.request.images if i.name == name)
            image = _Image(features * self.tower.feature_bytes if self.tower else 0)
        self._images[name] = image
        image.rows.add(row.id)
        return image

    def _complete(self, name: str) -> bool:
        image = self._images.get(name)
        return image is not None and self.tower is not None and image.done == self.tower.steps

    def _excess(self, max_bytes: int) -> Iterator[str]:
        """Yield the least recently used idle images that exceed `max_bytes` together."""
        idle = [(name, image) for name, image in self._images.items() if not image.rows]
        total = sum(image.nbytes for _, image in idle)
        for name, image in idle:
            if total <= max_bytes:
                return
            total -= image.nbytes
            yield name

    def _forget(self, names: list[str]) -> list[CacheOp]:
        unique = tuple(dict.fromkeys(names))
        for name in unique:
            del self._images[name]
        return [Forget(unique)] if unique else []
