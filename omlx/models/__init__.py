"""Models: finding them, reading them, loading them, and whether one can draft for another."""
