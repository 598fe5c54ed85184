"""`omlx bench`: measurements on a user's own machine and models. Programs, never tests.

Interleaved pairs, medians of ratios within trials, and a comparison of all tokens.
"""
