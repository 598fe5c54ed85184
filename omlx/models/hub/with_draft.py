"""A model is downloaded with a draft that its package does not declare: the settings name it."""

from __future__ import annotations

from omlx.settings.configuration import LiveConfiguration


def remember_draft(configuration: LiveConfiguration, model: str, draft: str) -> None:
    """Store a draft as that of a model, unless one is stored. Writes the settings file.

    Raises ConfigError.
    """
    if not configuration.current.stored.layer(model).values.get("draft_model"):
        configuration.patch({"draft_model": draft}, model)
