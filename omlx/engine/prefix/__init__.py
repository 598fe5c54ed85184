"""Prefix cache: an index over tokens. Pure Python: `device.payloads` has the arrays."""
