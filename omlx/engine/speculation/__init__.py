"""Speculation: who drafts, how much, and what came of it. The draft model alone imports mlx."""
