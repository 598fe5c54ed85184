"""Trains the three small models that ship with omlx. Start with ``python -m training.train``."""
