"""Settings: one table (`schema`), one precedence (`resolve`), immutable snapshots
(`configuration`).
"""
