"""What is configured for all models or for one: the layers of this run over those of the files."""

from __future__ import annotations

from dataclasses import dataclass

from omlx.errors import Reason
from omlx.settings.layer import Layer, Source
from omlx.settings.resolve import Resolution, resolve
from omlx.settings.schema import Settings, table
from omlx.settings.store import Store


@dataclass(frozen=True, slots=True)
class Configuration:
    """`run` holds the flags and the environment. Without a store, nothing else is configured."""

    run: tuple[Layer, ...] = ()
    store: Store | None = None

    @classmethod
    def of(cls, settings: Settings) -> Configuration:
        """One in which what differs from the built-in values was given as flags."""
        values = {name: getattr(settings, name) for name in table()}
        return cls(
            (
                Layer(
                    Source.CLI,
                    {name: v for name, v in values.items() if v != table()[name].default},
                ),
            )
        )

    @property
    def notes(self) -> tuple[Reason, ...]:
        """Which files did not count when they were last read, and why."""
        return (
            ()
            if self.store is None
            else tuple(Reason(note.code, note.params) for note in self.store.notes)
        )

    def resolve(self, model: str | None = None, *more: Layer) -> Resolution:
        """Every setting for `model`; `more` are a package's layers. Reads the files, as `Store` does."""
        layers = [*self.run, *more]
        if self.store is not None:
            layers.append(self.store.layer())
            if model is not None:
                layers.append(self.store.layer(model))
        return resolve(layers)
