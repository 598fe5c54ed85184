"""`omlx bench`: measurements on a user's own machine and models. Programs, never tests.

Sides run in interleaved pairs; reported are medians of ratios within trials, and a comparison of
all tokens.
"""
