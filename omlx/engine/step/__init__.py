"""Deciding: which rows run and what each step does. Never imports mlx."""
