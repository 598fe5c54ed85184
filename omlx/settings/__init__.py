"""Settings: one table (`schema`), one precedence (`resolve`); flags, variables and documents derive
from them.
"""
