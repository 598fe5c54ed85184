"""Training of the bundled demo models: ``python -m training.train``."""
