"""Looks at every architecture that mlx-lm has: can its cache be taken back, can its rows share a batch.

`python -m tests.probe` writes what it finds to docs/model-support.md. Everything is measured on the tiny models of
tests/zoo, whose windows and chunks of 16 tokens the probe runs past.
"""
