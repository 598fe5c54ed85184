"""`python -m lab.bench COMMAND`: measurements for those who change omlx. Programs, never tests.

Sides run in interleaved pairs; reported are medians of ratios within trials, and a comparison of
all tokens.
"""
