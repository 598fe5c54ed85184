"""Prefix cache: an index over tokens (pure Python). The arrays behind it are in `arrays`."""
