"""`omlx bench`: interleaved pairs, medians of ratios within them, and whether both sides said the same. Programs, never
tests."""
