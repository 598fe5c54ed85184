"""Prefix cache: an index over tokens (pure Python) and the cache pieces behind it (mlx)."""
