"""Bounds of a pass over a prompt: tokens, memory, time."""
