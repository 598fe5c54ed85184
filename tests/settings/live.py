"""A configuration without files, from settings alone."""

from __future__ import annotations

from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Layer, Source
from omlx.settings.schema import Settings, table


def live_configuration(settings: Settings) -> LiveConfiguration:
    """Return a configuration whose flags are the values of `settings` that are no defaults."""
    values = {name: getattr(settings, name) for name in table()}
    flags = {name: value for name, value in values.items() if value != table()[name].default}
    return LiveConfiguration((Layer(Source.CLI, flags),))
