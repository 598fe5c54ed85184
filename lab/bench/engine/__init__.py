"""`python -m lab.bench engine`: the engine against mlx-lm, in one process without HTTP."""
