"""Text before and after the engine: messages to token ids, token ids to events. Without HTTP."""
