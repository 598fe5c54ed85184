"""Images of requests: sources, limits, and preparation for a model."""
