"""Probe of every architecture of mlx-lm: rollback of its cache, and batching of its rows.

`python -m lab.probe` writes the results to docs/model-support.md. It uses the tiny models of
tests/zoo, and runs past their windows and chunks of 16 tokens.
"""
