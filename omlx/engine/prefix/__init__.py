"""Prefixes that were computed once: an index over tokens (pure Python), and the pieces of caches behind it (mlx)."""
