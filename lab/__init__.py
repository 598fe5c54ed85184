"""Tools of those who change omlx: measurements, fuzzing, soak tests, the probe of architectures.

Not in the wheel. `lab` imports `omlx`, and what `tests` builds on; `omlx` never imports `lab`.
"""
