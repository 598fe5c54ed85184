"""Measurements of models: samples, ratios, spread and verdict, as plans of one runner.

`trial` (*try a draft*) and `benchmark` measure in the running server. Sides take turns, a ratio is
taken within each turn, and the median of the ratios is reported.
"""
