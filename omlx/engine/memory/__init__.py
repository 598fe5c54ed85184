"""Admission control: one memory budget shared by all loaded models. Pure Python."""
