"""Pools for tests: a registry, settings as if given by flags, and a default model."""

from __future__ import annotations

from typing import Any

from omlx.engine.thread import EngineThread
from omlx.models.catalog.catalog import Catalog
from omlx.models.catalog.registry import Registry
from omlx.models.pool.pool import Pool, build_pool
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.schema import Settings
from tests.settings.live import live_configuration


def make_pool(
    engine: EngineThread,
    registry: Registry,
    settings: Settings | None = None,
    *,
    configuration: LiveConfiguration | None = None,
    default: str | None = None,
    **parts: Any,
) -> Pool:
    """Build a pool from `configuration`, or from `settings` alone."""
    configuration = configuration or live_configuration(settings or Settings())
    return build_pool(engine, Catalog(registry, configuration, default), **parts)
