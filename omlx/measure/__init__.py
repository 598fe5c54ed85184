"""The measuring core of `omlx bench` and *try a draft*: samples, ratios, spread, exactness.

Two sides do the same work in turns. A figure is taken of each trial, a ratio within each trial, and
what is reported is the median of the ratios with their spread. Nothing here imports mlx.
"""
