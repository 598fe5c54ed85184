"""The device of a server fails at random points, with the texts of Metal.

Installed into the process by `device_site`. A failed pass leaves finite garbage in logits and
caches, and the call that looks next gets the error.
"""

from __future__ import annotations

import json
import random
from typing import Final

import pytest

from tests.engine.faults import IGNORED, INTERACTIVITY, OUT_OF_MEMORY, FailingDevice

TIMEOUT: Final = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)
TEXTS: Final = {INTERACTIVITY: 4, TIMEOUT: 3, OUT_OF_MEMORY: 4, IGNORED: 1}
"""Texts by how often they come."""


class RandomlyFailing(FailingDevice):
    """One use in `every` of any site fails. After a text that says so, all later uses do."""

    def __init__(self, every: int, seed: int) -> None:
        super().__init__(pytest.MonkeyPatch(), text=INTERACTIVITY)
        self._every = every
        self._random = random.Random(seed)
        self._dead = False

    def strikes(self, site: str) -> bool:
        if not site or not (self._dead or self._random.random() * self._every < 1):
            return False
        if not self._dead:
            (self._text,) = self._random.choices([*TEXTS], [*TEXTS.values()])
        self._dead |= self._text == IGNORED
        self.struck += 1
        return True


def install(order: str) -> None:
    """Let the device of this process fail: at random (`every`, `seed`), or where an order of
    `FailingDevice` says.
    """
    values = json.loads(order)
    if "every" in values:
        RandomlyFailing(**values)
    else:
        FailingDevice(pytest.MonkeyPatch(), **values)
