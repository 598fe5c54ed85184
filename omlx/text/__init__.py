"""Text on both sides of the engine: messages to token ids, token ids to events. No HTTP in here."""
