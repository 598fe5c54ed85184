"""Profiles: named defaults of requests to a model, which one loaded copy of it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omlx.draft_length import DraftLength
from omlx.settings.layer import Layer, Source
from omlx.settings.resolve import resolve
from omlx.settings.schema import Settings, Value


@dataclass(frozen=True, slots=True)
class Profile:
    """`values` are settings by name; the request's own values win over them."""

    model: str
    name: str
    values: Mapping[str, Value]

    @property
    def id(self) -> str:
        """What clients name as their model."""
        return f"{self.model}:{self.name}"

    @property
    def settings(self) -> Settings:
        """Its values; the built-in ones where it has none."""
        return resolve([Layer(Source.PROFILE, self.values)]).settings

    @property
    def draft_length(self) -> DraftLength:
        """Its bounds of the draft length; open ones where it has none."""
        return DraftLength.parse(self.values)
