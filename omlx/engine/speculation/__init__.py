"""Speculation: estimate, explore, decide. The draft model alone imports mlx."""
