"""`omlx bench engine`: the engine against mlx-lm's generators, in one process and without HTTP."""
