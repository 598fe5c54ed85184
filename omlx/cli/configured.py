"""The configuration that a command works with: its flags, the environment, the files in the home folder."""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from omlx.errors import ConfigError
from omlx.models.pool.speculation_config import check_value, strategy_of
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.resolve import cli_layer, environment_layer, resolve
from omlx.settings.schema import table
from omlx.settings.store import Store


def configured(arguments: Namespace, *, aside: bool = False) -> LiveConfiguration:
    """Says on standard error which files do not count, and why. What cannot be parsed is moved `aside`, or left to a
    server that may be running. Raises ConfigError for whatever cannot be."""
    run = (cli_layer(arguments), environment_layer(os.environ))
    home = resolve(run).settings.home
    if not home.is_absolute():  # no HOME, and nobody knows this user
        raise ConfigError("config.home_unknown", where=table()["home"].variable, value=str(home))
    store = Store(home, check_value)
    for note in store.read(aside=aside).notes:
        sys.stderr.write(f"omlx: {note.message}\n")
    configuration = LiveConfiguration(run, store)
    strategy_of(configuration.current.resolve())
    return configuration
