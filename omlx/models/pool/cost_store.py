"""Measured costs of passes, stored across runs in `omlx.sqlite`.

Costs are valid only for the same model, weights, dtype, machine and mlx version; they cover passes
of the model and of all its draft models so far. Invalid content is logged and treated as missing:
measuring again costs a few slow rounds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from omlx.engine.speculation.cost_model import CostModel
from omlx.storage import Failure, Measurements

KIND: Final = "costs"
_INVALID: Final = (
    *(LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError),
)

_KERNELS: Final = (
    *("MLX_ENABLE_TF32", "MLX_METAL_GPU_ARCH", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS"),
)
"""Environment variables that change how mlx or the BLAS computes."""

log = logging.getLogger("omlx.models")


@dataclass(frozen=True, slots=True)
class CostKey:
    """Conditions of measured costs; `weights_bytes` distinguishes successive models with one id."""

    model: str
    dtype: str
    weights_bytes: int
    machine: str
    mlx: str

    @property
    def name(self) -> str:
        readable = re.sub(r"[^\w.-]+", "--", self.model)[:80]
        return f"{readable}-{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}"


def machine() -> str:
    """Return a description of device and libraries: another BLAS is another machine."""
    device = mx.device_info()
    parts = [
        platform.system(),
        platform.machine(),
        device.get("device_name", ""),
        device.get("memory_size", ""),
    ]
    parts += [mx.default_device().type.name, Path(os.environ.get("LD_PRELOAD", "")).name]
    parts.append(platform.mac_ver()[0])
    parts += [f"{name}={os.environ[name]}" for name in _KERNELS if name in os.environ]
    return " ".join(str(part) for part in parts if part)


@dataclass(frozen=True, slots=True)
class CostStore:
    """The costs stored in `home`. Thread-safe."""

    home: Path

    def load(self, key: CostKey) -> CostModel:
        try:
            text = Measurements(self.home, KIND).load(key.name)
            if text is None:
                return CostModel()
            content = json.loads(text)
            if content["key"] != asdict(key):
                raise ValueError("it was measured under other conditions")
            return CostModel.from_json(_validated(content["costs"]))
        except (*Failure, *_INVALID) as error:
            _warn("costs not read", error)
            return CostModel()

    def save(self, key: CostKey, costs: dict[str, Any]) -> None:
        """Save the result of `CostModel.to_json`, if it has measurements. Errors are logged."""
        if not costs["target"] and costs["exactness"] is None:
            return
        try:
            text = json.dumps({"key": asdict(key), "costs": costs}, allow_nan=False)
            Measurements(self.home, KIND).change(key.name, lambda _: text)
        except (*Failure, ValueError) as error:
            _warn("costs not saved", error)


class LoadedCosts:
    """Costs of a loaded model, stored in `files` if given. Used on the engine thread."""

    def __init__(self, files: CostStore | None = None) -> None:
        self._files = files
        self._key: CostKey | None = None
        self._costs = CostModel()

    def open(self, key: CostKey) -> CostModel:
        """Return the stored costs, or the current ones if the model has only been reopened."""
        if key != self._key:
            self.close()
            self._key, self._costs = key, CostModel()
            if self._files is not None:
                self._costs = self._files.load(key)
        return self._costs

    def close(self) -> None:
        """Save the costs when the model is unloaded."""
        record = self.record()
        if self._files is not None and record is not None:
            self._files.save(*record)
        self._key = None

    def record(self) -> tuple[CostKey, dict[str, Any]] | None:
        """Return key and JSON of the costs; None before `open`."""
        if self._key is None:
            return None
        return self._key, self._costs.to_json()


def _validated(costs: dict[str, Any]) -> dict[str, Any]:
    """Return `costs`. Raises ValueError for impossible measurements."""
    rows = list(costs["target"])
    for draft_rows in costs["drafts"].values():
        rows += draft_rows
    for row in rows:
        if not (0 <= row["bucket"] < 32 and 0 <= row["width"] < 1 << 24 and row["seconds"]):
            raise ValueError("an entry is out of range")
        if not all(math.isfinite(seconds) and seconds > 0 for seconds in row["seconds"]):
            raise ValueError("a time is not positive and finite")
    return costs


def _warn(event: str, error: Exception) -> None:
    log.warning(event, extra={"fields": {"detail": f"{type(error).__name__}: {error}"}})
