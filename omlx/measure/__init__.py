"""Measurements of models: samples, ratios, their spread and verdict, in plans of one runner.

`trial` (*try a draft*) and `benchmark` measure in the running server; `omlx.bench` drives an engine
of its own. Sides take turns, a ratio is taken within each turn, the median of ratios is reported.
"""
