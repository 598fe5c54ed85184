"""`omlx doctor --exact MODEL`: at which widths the passes of a model have the bits of single steps.

The result is kept with the costs of passes, where a server finds it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from omlx.catalog import sentence
from omlx.cli.arguments import find_models
from omlx.cli.output import columns
from omlx.engine.thread import EngineThread
from omlx.exactness import Exactness
from omlx.models.catalog.catalog import Catalog
from omlx.models.pool.cost_file import CostFiles
from omlx.models.pool.pool import build_pool
from omlx.server.endpoints.exactness import ExactnessService
from omlx.settings.configuration import LiveConfiguration


def measure(model: str, configuration: LiveConfiguration) -> int:
    """Measure a model in this process, and print a table."""
    measured = asyncio.run(_measure(model, configuration))
    rows = [tuple(sentence(f"cli.doctor.exact.{name}", {}) for name in ("pass", "difference"))]
    rows += _rows("window", measured.windows) + _rows("batch", measured.rows)
    contexts = ", ".join(map(str, measured.contexts))
    params = {"width": measured.width, "rows": measured.batch, "contexts": contexts}
    sys.stdout.write(columns(rows) + "\n" + sentence("cli.doctor.exact.result", params) + "\n")
    return 0


def _rows(kind: str, differences: Mapping[int, float]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for size, value in differences.items():
        cell = f"{value:.2g}" if value else sentence("cli.doctor.exact.equal", {})
        rows.append((sentence(f"cli.doctor.exact.{kind}", {"size": size}), cell))
    return rows


async def _measure(model: str, configuration: LiveConfiguration) -> Exactness:
    passes = 0

    def passed() -> None:
        nonlocal passes
        passes += 1
        if sys.stderr.isatty():
            sys.stderr.write("\r" + sentence("cli.doctor.exact.progress", {"passes": passes}))

    engine = EngineThread()
    engine.start()
    try:
        settings = configuration.current.resolve().settings
        registry = await asyncio.to_thread(find_models([], configuration.current).scan)
        files = CostFiles(settings.home / "costs")
        pool = build_pool(engine, Catalog(registry, configuration), costs=files)
        measured = await ExactnessService(pool, engine).measure(model, passed)
        await pool.residents.save_costs(files)
        return measured
    finally:
        if sys.stderr.isatty():
            sys.stderr.write("\n")
        engine.stop()
