"""The arrays of cached prefixes, by piece (mlx)."""
