"""What passes of a model cost here, kept from one run to the next: one file a model, in `OMLX_HOME/costs`.

A file counts for the model, weights, type, machine and mlx version that it was measured with, and for no other; it
holds the model's own passes and those of every draft model it has had. Losing one costs a few slow rounds: whatever is
wrong with a file, it is as if it were not there, and the log says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import re
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from omlx.engine.speculation.cost_model import CostModel

FORMAT: Final = "omlx-costs/1"

log = logging.getLogger("omlx.models")


@dataclass(frozen=True, slots=True)
class CostKey:
    """What costs depend on. `weights_bytes` tells apart two models that had the same id at different times."""

    model: str
    dtype: str
    weights_bytes: int
    machine: str
    mlx: str

    @property
    def file(self) -> str:
        readable = re.sub(r"[^\w.-]+", "--", self.model)[:80]
        return f"{readable}-{hashlib.sha256(repr(self).encode()).hexdigest()[:16]}.json"


def machine() -> str:
    """The device that computes, and what links to it: another BLAS is another machine."""
    device = mx.device_info()
    parts = [
        platform.system(),
        platform.machine(),
        device.get("device_name", ""),
        device.get("memory_size", ""),
    ]
    parts += [mx.default_device().type.name, Path(os.environ.get("LD_PRELOAD", "")).name]
    return " ".join(str(part) for part in parts if part)


@dataclass(frozen=True, slots=True)
class CostFiles:
    """The files in `folder`, which is made when there is something to keep. Any thread may call."""

    folder: Path

    def load(self, key: CostKey) -> CostModel:
        """What is known, or nothing."""
        path = self.folder / key.file
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT or content["key"] != asdict(key):
                raise ValueError("it belongs to something else")
            return CostModel.from_json(_checked(content["costs"]))
        except FileNotFoundError:
            return CostModel()
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            _warn("costs not read", path, error)
            return CostModel()

    def save(self, key: CostKey, costs: dict[str, Any]) -> None:
        """Keep what `CostModel.to_json` gave, unless nothing is measured. A failure is logged, not raised."""
        if not costs["target"]:
            return
        path = self.folder / key.file
        content = {"format": FORMAT, "key": asdict(key), "costs": costs}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            _replace(path, json.dumps(content, allow_nan=False).encode())
        except (OSError, ValueError) as error:
            _warn("costs not kept", path, error)


class CostKeeper:
    """The costs of the model that is loaded, on the engine thread. Without `files` they live as long as it does."""

    def __init__(self, files: CostFiles | None = None) -> None:
        self.files = files
        self._key: CostKey | None = None
        self._costs = CostModel()

    def open(self, key: CostKey) -> CostModel:
        """What is known of a model; the one that is loaded goes on learning where it was."""
        if key != self._key:
            self.close()
            self._key, self._costs = (
                key,
                self.files.load(key) if self.files is not None else CostModel(),
            )
        return self._costs

    def close(self) -> None:
        """The model goes."""
        if self.files is not None and (now := self.now()) is not None:
            self.files.save(*now)
        self._key = None

    def now(self) -> tuple[CostKey, dict[str, Any]] | None:
        """What would be saved."""
        return None if self._key is None else (self._key, self._costs.to_json())


def _checked(costs: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError for numbers that no clock ever showed."""
    for row in [*costs["target"], *(row for rows in costs["drafts"].values() for row in rows)]:
        if not (0 <= row["bucket"] < 32 and 0 <= row["width"] < 1 << 24 and row["seconds"]):
            raise ValueError("an entry is out of range")
        if not all(math.isfinite(value) and value > 0 for value in row["seconds"]):
            raise ValueError("a time is not one")
    return costs


def _replace(path: Path, data: bytes) -> None:
    """Readers, and a power cut, meet the old content or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _warn(event: str, path: Path, error: Exception) -> None:
    log.warning(
        event, extra={"fields": {"file": str(path), "detail": f"{type(error).__name__}: {error}"}}
    )
