"""Prefixes on disk: the tier below the prefix index. Pure Python; see docs/prefix-cache.md."""
