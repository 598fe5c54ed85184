"""Measures the engine against mlx-lm: one process, interleaved pairs, medians of ratios. A program, never a test."""
