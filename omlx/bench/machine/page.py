"""The page of `omlx doctor --bench`: parts in order, within ten minutes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from omlx.bench.machine import kernels, model
from omlx.bench.machine.part import Part, run_parts
from omlx.bench.subject import Subject

BUDGET_S: Final = 540.0
"""Seconds of measuring: ten minutes, less the time to load a model."""


def parts(subject: Subject) -> list[Part]:
    """Return the parts of the page, those that may end the process last."""
    return [
        kernels.calls(5),
        model.decoding(subject, 90),
        model.widths(subject, 90),
        model.exactness(subject, 120),
        model.pauses(subject, 45),
        kernels.products(45),
        kernels.attention(45),
        model.prefill(subject, 100),
    ]


def page(subject: Subject, seconds: float) -> Iterator[str]:
    """Measure for so many `seconds`, and yield the text of each part as soon as it is there."""
    load = os.getloadavg()[0]
    yield f"Model: {subject.names[0]}, {_weights(subject)}\nLoad average before: {load:.2f}\n"
    yield from run_parts(parts(subject), seconds)


def _weights(subject: Subject) -> str:
    """Return architecture, parameters and types of the weights."""
    facts = subject.describe()["model"]
    assert isinstance(facts, dict)
    kinds = ", ".join(facts["dtype"])
    return f"{facts['architecture']}, {facts['parameters'] / 1e6:,.1f} M parameters, {kinds}"
