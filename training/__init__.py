"""Training of the three bundled demo models: ``python -m training.train``."""
